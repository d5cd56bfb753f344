#!/bin/sh
# Says on the console what the agent costs: a line for each process and one for the machine, every 20 s.
group=/sys/fs/cgroup/system.slice/geartrain-agent.service
disk=
for event in /sys/class/block/*/uevent; do
    if grep -q '^PARTNAME=geartrain-data$' "$event"; then
        disk=${event%/uevent}
    fi
done
while :; do
    read -r up _ </proc/uptime
    available=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
    written=$(awk '{ print $7 * 512 }' "$disk/stat")
    root=$(awk '$2 == "/" { print $3 ":" substr($4, 1, 2) }' /proc/mounts)
    echo "COSTS machine $up $available $written $root" >/dev/console
    for pid in $(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null); do
        rss=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null)
        pss=$(sed -n 's/^Pss: *\([0-9]*\).*/\1/p' "/proc/$pid/smaps_rollup" 2>/dev/null)
        ticks=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | awk '{ print $12 + $13 }')
        name=$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | tr -s ' ' '_')
        echo "COSTS process $up $pid ${rss:-0} ${pss:-0} ${ticks:-0} $name" >/dev/console
    done
    sleep 20
done
