#!/bin/sh
# Installs the Geartrain agent on this machine, from the files beside this script; asks no network.
#
#   sh install.sh               install, or bring up to date; may be run again at any time
#   sh install.sh --no-start    the same, and leave the start to the next boot (for images)
#   sh install.sh --uninstall   remove the program; configuration and state stay
#   sh install.sh --uninstall --purge   remove all of it
#
# What it makes: the user geartrain, /opt/geartrain (the program), /etc/geartrain (device.toml, join.toml),
# /var/lib/geartrain (state), and two units of systemd. A run that is cut off at any point may be repeated.
set -eu
umask 022

USER_NAME=geartrain
PROGRAM=/opt/geartrain
CONFIG=/etc/geartrain
STATE=/var/lib/geartrain
UNITS=/etc/systemd/system
AGENT=geartrain-agent.service
JOIN=geartrain-join.service

say() { printf 'geartrain: %s\n' "$1"; }
fail() {
    printf 'geartrain: %s\n' "$1" >&2
    exit 1
}
booted() { [ -d /run/systemd/system ]; }

# The values of the installer: ARCH, MACHINES, PYTHON, VERSION, ENVIRONMENT, SIZE_KB.
read_about() {
    cd "$(dirname "$0")"
    if [ ! -f about ] || [ ! -f SHA256SUMS ]; then
        fail "files are missing beside install.sh: unpack the installer again."
    fi
    sha256sum -c SHA256SUMS >/dev/null 2>&1 ||
        fail "a file of the installer is damaged (sha256sum -c SHA256SUMS names it): copy the installer again."
    # shellcheck disable=SC1091
    . ./about
}

check_machine() {
    machine=$(uname -m)
    case " $MACHINES " in
        *" $machine "*) ;;
        *) fail "this installer is for $ARCH and this machine is $machine: make one with gear flash --arch." ;;
    esac
    command -v systemctl >/dev/null || fail "systemd is needed and there is no systemctl here."
    command -v useradd >/dev/null || fail "useradd is needed to make the user $USER_NAME: install the package passwd or shadow."
    getconf GNU_LIBC_VERSION >/dev/null 2>&1 ||
        fail "the wheels are for glibc, and this system has another C library."
}

find_python() {
    base=
    for candidate in "python$PYTHON" python3; do
        for folder in /usr/bin /usr/local/bin; do
            if [ -x "$folder/$candidate" ] && [ "$(version_of "$folder/$candidate")" = "$PYTHON" ]; then
                base=$folder/$candidate
                break 2
            fi
        done
    done
    if [ -z "$base" ]; then
        here=$(version_of "$(command -v python3 || echo none)")
        fail "Python $PYTHON is needed and ${here:-none} was found: install python$PYTHON, or make an installer with gear flash --python ${here:-3.11}."
    fi
    "$base" -c 'import sqlite3, ssl, venv' 2>/dev/null ||
        fail "$base lacks one of the modules sqlite3, ssl and venv: install the whole of Python $PYTHON (Debian: apt-get install python3)."
}

version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

check_room() {
    mkdir -p "$PROGRAM"
    free_kb=$(df -Pk "$PROGRAM" | awk 'NR == 2 { print $4 }')
    [ "$free_kb" -ge "$SIZE_KB" ] ||
        fail "$PROGRAM needs $SIZE_KB KB and its disk has $free_kb: make room there, then run this again."
}

make_user() {
    getent group "$USER_NAME" >/dev/null || groupadd --system "$USER_NAME"
    getent passwd "$USER_NAME" >/dev/null ||
        useradd --system --gid "$USER_NAME" --home-dir "$STATE" --no-create-home --shell /usr/sbin/nologin "$USER_NAME"
    for folder in "$CONFIG" "$STATE"; do
        mkdir -p "$folder"
        chown "$USER_NAME:$USER_NAME" "$folder"
        chmod 0700 "$folder"
    done
}

# The program lies in a folder of its own, named by what it holds, and becomes the current one in one step.
make_environment() {
    new=$PROGRAM/$ENVIRONMENT
    if [ -f "$new/complete" ]; then
        return
    fi
    check_room
    say "installing Geartrain $VERSION into $new"
    rm -rf "$new"
    trap 'rm -rf "$new"' EXIT
    made="cannot be filled: is its disk full? Make room, then run this again."
    "$base" -m venv --without-pip "$new" || fail "$new $made"
    pip=$(echo "$PWD"/pip/pip-*.whl)
    # With that date set, bytecode is known by a hash of its source and not by its time, which an image's tools
    # change. A program without valid bytecode compiles itself at each start: seven megabytes and seconds more.
    SOURCE_DATE_EPOCH=0 PYTHONPATH=$pip PIP_CONFIG_FILE=/dev/null "$new/bin/python" -m pip --isolated --disable-pip-version-check --no-input \
        install --quiet --no-index --no-cache-dir --find-links wheels --require-hashes --only-binary=:all: \
        --root-user-action=ignore --requirement requirements.txt || fail "$new $made"
    "$new/bin/python" -I -c 'import geartrain_edge.parent.main, geartrain_edge.agent.main' ||
        fail "the agent cannot be imported here: see above."
    sync
    : >"$new/complete" || fail "$new $made"
    trap - EXIT
}

# In one step, by rename; the environment that ran before stays, older ones go.
switch_environment() {
    former=$(readlink "$PROGRAM/venv" || true)
    if [ "$former" != "$ENVIRONMENT" ]; then
        changed=1
        rm -f "$PROGRAM/.venv.new"
        ln -s "$ENVIRONMENT" "$PROGRAM/.venv.new"
        "$base" -c 'import os, sys; os.replace(*sys.argv[1:])' "$PROGRAM/.venv.new" "$PROGRAM/venv"
        for old in "$PROGRAM"/*/complete; do
            old=$(basename "$(dirname "$old")")
            case $old in
                venv | "$ENVIRONMENT" | "$former") ;;
                *) rm -rf "${PROGRAM:?}/$old" ;;
            esac
        done
    fi
    cmp -s install.sh "$PROGRAM/install.sh" || cp install.sh "$PROGRAM/install.sh"
}

# place FILE TARGET MODE: the file is whole there or not there, and no other may read it before its mode is set.
place() {
    if cmp -s "$1" "$2"; then
        return 1
    fi
    mkdir -p "$(dirname "$2")"
    rm -f "$2.new"
    (umask 077 && cp "$1" "$2.new") || fail "$2 cannot be written: is its disk full?"
    chmod "$3" "$2.new"
    mv -f "$2.new" "$2"
}

place_units() {
    for unit in "$AGENT" "$JOIN"; do
        if place "units/$unit" "$UNITS/$unit" 0644; then
            changed=1
        fi
    done
    if booted; then
        systemctl daemon-reload
    fi
    systemctl --quiet enable "$AGENT" "$JOIN"
}

place_join() {
    [ -f join.toml ] || return 0
    if [ -f "$CONFIG/device.toml" ]; then
        say "this device has joined already ($CONFIG/device.toml): the installer's join file is not used."
        return 0
    fi
    place join.toml "$CONFIG/join.toml" 0600 || true
    chown "$USER_NAME:$USER_NAME" "$CONFIG/join.toml"
}

# Hostname, time server and network, where the operator gave them.
apply_settings() {
    [ -d settings ] || return 0
    if [ -f settings/hostname ] && place settings/hostname /etc/hostname 0644; then
        name=$(cat settings/hostname)
        grep -q "[[:space:]]$name\$" /etc/hosts 2>/dev/null || printf '127.0.1.1\t%s\n' "$name" >>/etc/hosts
        if booted; then
            hostname "$name" 2>/dev/null || hostnamectl set-hostname "$name"
        fi
    fi
    if [ -f settings/timesyncd.conf ]; then
        place settings/timesyncd.conf /etc/systemd/timesyncd.conf.d/geartrain.conf 0644 || true
        if command -v chronyc >/dev/null; then
            say "time comes from chrony here: name the server in its configuration yourself."
        elif booted; then
            systemctl try-restart systemd-timesyncd.service || true
        fi
    fi
    apply_network
}

# Raspberry Pi OS keeps its radio off until it is told the country.
allow_radio() {
    [ -f settings/country ] || return 0
    if command -v raspi-config >/dev/null; then
        raspi-config nonint do_wifi_country "$(cat settings/country)" || say "raspi-config has refused the country: see above."
    fi
    if booted && command -v rfkill >/dev/null; then
        rfkill unblock wifi || true
    fi
}

apply_network() {
    [ -f settings/netplan.yaml ] || return 0
    allow_radio
    if command -v netplan >/dev/null; then
        place settings/netplan.yaml /etc/netplan/90-geartrain.yaml 0600 || return 0
        if booted; then
            netplan apply || say "netplan has refused /etc/netplan/90-geartrain.yaml: see above."
        fi
    elif command -v nmcli >/dev/null; then
        place settings/geartrain.nmconnection /etc/NetworkManager/system-connections/geartrain.nmconnection 0600 || return 0
        if booted; then
            nmcli connection reload || true
        fi
    else
        place settings/geartrain.network "$UNITS/../network/10-geartrain.network" 0644 || true
        if [ -f settings/wpa_supplicant.conf ]; then
            place settings/wpa_supplicant.conf /etc/wpa_supplicant/wpa_supplicant-wlan0.conf 0600 || true
            systemctl --quiet enable wpa_supplicant@wlan0.service ||
                say "there is no wpa_supplicant here, which the wireless network needs: install it."
        fi
        systemctl --quiet enable systemd-networkd.service || say "no service here configures the network."
        if booted; then
            systemctl try-reload-or-restart systemd-networkd.service || true
        fi
    fi
}

start() {
    if [ -n "$no_start" ] || ! booted; then
        return 0
    fi
    if [ -f "$CONFIG/join.toml" ]; then
        systemctl --no-block start "$JOIN"
    fi
    if [ -f "$CONFIG/device.toml" ]; then
        if [ -n "$changed" ]; then
            systemctl restart "$AGENT"
        else
            systemctl start "$AGENT"
        fi
    fi
}

install_all() {
    read_about
    check_machine
    find_python
    changed=
    make_user
    make_environment
    switch_environment
    place_units
    place_join
    apply_settings
    sync
    start
    if [ -f "$CONFIG/device.toml" ]; then
        say "Geartrain $VERSION is installed."
    elif [ -f "$CONFIG/join.toml" ]; then
        say "Geartrain $VERSION is installed; it joins its platform as soon as there is a network."
    else
        say "Geartrain $VERSION is installed. Join a platform with the line that gear device add prints:"
        say "  sudo $PROGRAM/venv/bin/gear-agent join ... && sudo systemctl start $AGENT"
    fi
}

uninstall() {
    cd /
    for unit in "$AGENT" "$JOIN"; do
        if [ -f "$UNITS/$unit" ]; then
            if booted; then
                systemctl stop "$unit"
            fi
            systemctl --quiet disable "$unit"
            rm -f "$UNITS/$unit"
        fi
    done
    if booted; then
        systemctl daemon-reload
    fi
    rm -rf "${PROGRAM:?}"
    if [ -z "$purge" ]; then
        say "removed; $CONFIG and $STATE stay (--purge removes them too)."
        return
    fi
    rm -rf "${CONFIG:?}" "${STATE:?}" "${UNITS:?}/$AGENT.d"
    if getent passwd "$USER_NAME" >/dev/null; then
        userdel "$USER_NAME"
    fi
    if getent group "$USER_NAME" >/dev/null; then
        groupdel "$USER_NAME"
    fi
    say "removed, with configuration and state."
}

action=install no_start='' purge=''
for word in "$@"; do
    case $word in
        --no-start) no_start=1 ;;
        --uninstall) action=uninstall ;;
        --purge) purge=1 ;;
        *) fail "there is no option $word: the options are --no-start, --uninstall and --purge." ;;
    esac
done
[ "$(id -u)" = 0 ] || fail "run this as root, such as with sudo."
if [ "$action" = uninstall ]; then
    uninstall
elif [ -n "$purge" ]; then
    fail "--purge belongs to --uninstall."
else
    install_all
fi
