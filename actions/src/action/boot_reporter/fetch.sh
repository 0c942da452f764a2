#!/bin/sh
# Fetches the boot reporter from slipway's server and becomes it. Whatever goes wrong here, no boot waits for it.
cd /@FOLDER@ || exit 0
is_whole() { echo '@SHA256@  slipway' | sha256sum --check --status 2>/dev/null; }
tries=@TRIES@
until is_whole || { curl --config fetch.curl && is_whole; }; do
    tries=$((tries - 1))
    if [ "$tries" -le 0 ]; then
        echo 'the program that was fetched is not the one that installed this system, or there is none; giving up'
        rm -f report.json fetch.curl ca.pem slipway @UNITS@ fetch.sh
        exit 0
    fi
    sleep @PAUSE@
done
chmod 0755 slipway
# With SELinux, the service manager's services may not run what has the label of data.
chcon --type=bin_t slipway 2>/dev/null
exec ./slipway report
