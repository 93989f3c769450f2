"""Moments of dense rows: mixtures, independent components, three views, trees and searches."""
