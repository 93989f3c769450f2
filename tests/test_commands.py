"""The command lines of all pages are accepted by the programs that they call, and examples name what exists."""

import argparse
import ast
import inspect
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest

from distmom.cli.app import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").exists(), reason="the documentation is not part of this copy"
)

#: prints the arguments of both programs instead of running them; no other program is found
SHELL = """
exec 3>> commands
report() { printf '%s\\0' "$@" >&3; printf '\\n' >&3; }
python() { report python "$@"; }
distmom() { report distmom "$@"; }
"""


def commands(page, folder):
    """Return the calls of `distmom` and `python` in a page, each as a list of arguments, with loops unrolled."""
    blocks = re.findall(
        r"^ *```(?:sh|console)\n(.*?)^ *```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for block in blocks:
        entered = re.findall(r"^ *\$ (.*)$", block, re.MULTILINE)
        done = subprocess.run(
            ["/bin/bash", "-c", SHELL + ("\n".join(entered) or block)],
            cwd=folder,
            env={"PATH": "/nowhere"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "syntax error" not in done.stderr, done.stderr
    written = folder / "commands"
    lines = written.read_text("utf-8").split("\n") if written.exists() else []
    return [line.split("\0")[:-1] for line in lines if line]


def accept(command, context=None):
    """Parse the arguments of a command, in the context of a group, without running it."""
    # Commands keep the options that ask for help from their first context.
    context = context or click.Context(cli, info_name="distmom", **cli.context_settings)
    name, found, rest = context.command.resolve_command(context, list(command))
    # The end of the block undoes what options have put in force, such as certificates.
    with found.make_context(name, rest, parent=context) as parsed:
        if isinstance(found, click.Group):
            accept(parsed._protected_args + parsed.args, parsed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_accepted(page, tmp_path, monkeypatch):
    found = [command for command in commands(page, tmp_path) if command[0] == "distmom"]
    (tmp_path / "tls").mkdir()
    for name in ("ca", "cert", "key"):
        (tmp_path / "tls" / f"{name}.pem").touch()
    monkeypatch.chdir(tmp_path)
    for command in found:
        try:
            accept(command[1:])
        except click.exceptions.Exit:
            assert {"--help", "-h", "--version"} & {*command}
        except click.ClickException as error:
            pytest.fail(f"{page.name}: {' '.join(command)}: {error.format_message()}")


class ParsedError(Exception):
    """Ends a script once its arguments are parsed."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_accept_their_arguments(page, tmp_path, monkeypatch, capsys):
    parse = argparse.ArgumentParser.parse_args

    def stop(parser, arguments=None, namespace=None):
        parse(parser, arguments, namespace)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.syspath_prepend(ROOT / "workflows")
    for command in commands(page, tmp_path):
        if not command[1].endswith(".py"):
            continue
        monkeypatch.setattr(sys, "argv", command[1:])
        try:
            runpy.run_path(str(ROOT / command[1]), run_name="__main__")
        except ParsedError:
            continue
        except SystemExit:
            pytest.fail(f"{page.name}: {' '.join(command)}: {capsys.readouterr().err}")
        pytest.fail(f"{page.name}: {command[1]} parses no arguments")


@pytest.mark.parametrize("script", sorted(ROOT.glob("workflows/*.py")), ids=lambda script: script.stem)
def test_scripts_import_what_exists(script):
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "distmom":
            exec(ast.unparse(node), {})


def test_commands_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nfor k in 1 2; do\n    distmom fit a b -k $k  # twice\ndone\n"
        "xz -dc x | head > y\npython workflows/a.py \\\n    'b c'\n```\n"
        "```console\n$ distmom info corpus\nn_documents 3\n```\n"
    )
    assert commands(page, tmp_path) == [
        ["distmom", "fit", "a", "b", "-k", "1"],
        ["distmom", "fit", "a", "b", "-k", "2"],
        ["python", "workflows/a.py", "b c"],
        ["distmom", "info", "corpus"],
    ]
    with pytest.raises(click.ClickException):
        accept(["fit", "a", "b", "--no-such-option"])


def examples(page):
    """Return the Python code of a page, block by block."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def check_calls(code, known):
    """Import what a block imports into `known`, and check the keywords of the calls of what was imported."""
    tree = ast.parse(textwrap.dedent(code))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "example", "exec"), known)
    for call in ast.walk(tree):
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if re.fullmatch(r"[\w.]+", name) and name.partition(".")[0] in known:
            function = eval(name, known)
            if getattr(function, "__module__", "").startswith("distmom"):
                keywords = {each.arg: None for each in call.keywords if each.arg}
                inspect.signature(function).bind_partial(**keywords)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_name_what_exists(page):
    known = {}
    for code in examples(page):
        check_calls(code, known)


def test_calls_of_examples_are_checked(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("x\n\n```python\nfrom distmom.models import SpectralLDA\nSpectralLDA(5, alpha0=1)\n```\n")
    (code,) = examples(page)
    check_calls(code, {})
    with pytest.raises(TypeError, match="no_such"):
        check_calls(code.replace("alpha0", "no_such"), {})
    with pytest.raises(ImportError):
        check_calls(code.replace("SpectralLDA", "NoSuchModel"), {})
