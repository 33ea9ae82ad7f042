#!/usr/bin/env bash
# Makes a fresh Debian or Ubuntu machine ready for this checkout: system
# packages that are missing, the virtual environment .venv, the project in it.
# Does nothing, quickly, when all of that is there.
#
#   scripts/setup.sh [--bench]     --bench also wants wrk
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

want_bench=no
for argument in "$@"; do
  case "$argument" in
    --bench) want_bench=yes ;;
    *) echo "setup: unknown argument: $argument" >&2; exit 2 ;;
  esac
done

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Servers live in sbin, which is not in everybody's PATH.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# Two set-ups of one checkout at once would write into one .venv.
exec 9>.setup.lock
flock 9

# --- system packages --------------------------------------------------------

has() {
  case "$1" in
    /*) [ -x "$1" ] ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
  esac
}

# Prints the first Python that is new enough and can really make an environment
# with pip in it: Debian's own python3 comes without ensurepip.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 /usr/bin/python3.11 python3 /usr/bin/python3 python3.12 python3.13; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      # Not an environment's own link to it, least of all the one in .venv that is to be replaced.
      "$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'
      return 0
    fi
  done
  return 1
}

missing_packages() {
  has redis-server || echo redis-server
  { has mariadbd && has mariadb-install-db; } || echo mariadb-server
  has mariadb || echo mariadb-client
  has /usr/lib/rabbitmq/bin/rabbitmq-server || echo rabbitmq-server
  has luacheck || echo lua-check
  # promtool comes with it: it checks the alert rules, and a test draws the dashboards from a real Prometheus.
  { has prometheus && has promtool; } || echo prometheus
  if [ "$want_bench" = yes ]; then has wrk || echo wrk; fi
  if ! find_python >/dev/null; then
    if [ -e /etc/debian_version ] && command -v python3.11 >/dev/null 2>&1; then echo python3.11-venv; else echo python3-venv; fi
  fi
}

# The packages' own scripts would start system services. Debian asks
# /usr/sbin/policy-rc.d first: where the machine has none, one that says no
# stands there for as long as apt runs. An existing one is the owner's word.
install_packages() {
  command -v apt-get >/dev/null 2>&1 || fail "these are missing and this system has no apt-get; install them by hand: $*"
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail "these Debian packages are missing, and installing them needs root: ask an administrator for: apt-get install $*"
    as_root=(sudo)
    sudo -n true 2>/dev/null || [ -t 0 ] || fail "these Debian packages are missing, and sudo would ask for a password: run in a terminal: sudo apt-get install $*"
  fi
  say "installing Debian packages: $*"
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap '"${as_root[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\n# Put here by a set-up script while it runs: start no services.\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    made_policy=yes
  else
    made_policy=no
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l
    apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  "${apt[@]}" update >.setup.log 2>&1 || say "apt-get update failed; trying with the lists that are here (see .setup.log)"
  if ! "${apt[@]}" install --no-install-recommends --no-upgrade "$@" >>.setup.log 2>&1; then
    tail -n 20 .setup.log >&2
    fail "apt-get could not install: $*"
  fi
  if [ "$made_policy" = yes ]; then
    "${as_root[@]}" rm -f "$policy"
    trap - EXIT INT TERM
  fi
}

mapfile -t missing < <(missing_packages)
if [ "${#missing[@]}" -gt 0 ]; then
  install_packages "${missing[@]}"
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -eq 0 ] || fail "still missing after the installation: ${missing[*]} (Python 3.11 or newer is needed)"
fi

# --- virtual environment ----------------------------------------------------

# The environment holds absolute paths, hence the folder in the key.
stamp=.venv/.setup-stamp
key="$(cat requirements-dev.lock pyproject.toml | sha256sum | cut -d' ' -f1) $PWD"
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && .venv/bin/python -c '' 2>/dev/null; then
  exit 0
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1 ||
  [ "$(cut -d' ' -f2- "$stamp" 2>/dev/null)" != "$PWD" ]; then
  python="$(find_python)" || fail "no Python 3.11 or newer with venv"
  say "making .venv with $python"
  rm -rf .venv
  "$python" -m venv .venv
fi
rm -f "$stamp"
say "installing the locked Python packages"
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet --quiet)
# Nothing is built or resolved: every file is named by its hash.
"${pip[@]}" install --require-hashes --no-deps --only-binary=:all: -r requirements-dev.lock
"${pip[@]}" install --no-deps --no-build-isolation -e .
printf '%s\n' "$key" >"$stamp"
say "ready"
