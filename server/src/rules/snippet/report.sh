# slipway_report NAME [STATUS [PERCENT [LABEL [LOGS [PRIORITY]]]]]
# reports a step of this installation to slipway. STATUS is init, done or failed. An empty argument changes nothing.
# NAME is cut after 62 bytes, LABEL after 200. Steps with a lower PRIORITY are shown first; the default is 100. The
# function prints nothing, takes at most ten seconds and always returns 0, so that it never stops its caller. To see why
# nothing arrives, set SLIPWAY_REPORT_LOG to a file: the output of the sending program is appended to it.
slipway_report() {
    (
        set +eu
        unset IFS
        umask 077
        LC_ALL=C
        export LC_ALL
        url='@URL@'
        token='@TOKEN@'
        ca='@CA@'
        field() {
            value=$(printf '%s\n' "$2" | sed -e 's/%/%25/g' -e 's/&/%26/g' -e 's/+/%2B/g' -e 's/$/%0A/' | tr -d '\n')
            body="$body$1=${value%"%0A"}&"
        }
        body=
        # The server accepts 64 bytes. A truncated character is replaced by one of three bytes.
        field name "$(printf '%.62s' "${1:-}")"
        field status "${2:-}"
        field percent "${3:-}"
        field label "$(printf '%.200s' "${4:-}")"
        field logs "$(printf '%s' "${5:-}" | tail -c 8000)"
        field priority "${6:-}"
        work=$(mktemp -d "${TMPDIR:-/tmp}/slipway.XXXXXX") || exit 0
        # Files, because every user can read program arguments. If the disk is too full for the body, writing the CA
        # fails too, and nothing is sent.
        printf '%s' "$body" >"$work/body"
        printf '%s\n' "$ca" >"$work/ca"
        : >"$work/request"
        said=/dev/null
        [ -z "${SLIPWAY_REPORT_LOG:-}" ] || said=$work/said
        if command -v curl; then
            printf 'header = "Authorization: Bearer %s"\n' "$token" >"$work/config"
            set -- curl -q --config "$work/config" --cacert "$work/ca" --capath "$work" --silent --show-error --fail \
                --connect-timeout 4 --max-time 8 --data-binary @"$work/body" "$url"
        elif command -v wget && wget --version | grep -q 'GNU Wget'; then
            printf 'header = Authorization: Bearer %s\n' "$token" >"$work/config"
            set -- wget --config="$work/config" --ca-certificate="$work/ca" --ca-directory="$work" --no-verbose \
                --output-document=/dev/null --tries=1 --timeout=4 --max-redirect=0 --post-file="$work/body" "$url"
        else
            # Only busybox is left. Its wget cannot verify with a CA, so openssl sends the request.
            printf 'POST %s HTTP/1.0\r\nHost: %s\r\nAuthorization: Bearer %s\r\n%s\r\nContent-Length: %s\r\n\r\n%s' \
                '@PATH@' '@ADDRESS@' "$token" 'Content-Type: application/x-www-form-urlencoded' \
                "$(($(printf '%s' "$body" | wc -c)))" "$body" >"$work/request"
            set -- openssl s_client -quiet -connect '@ADDRESS@' -CAfile "$work/ca" -verify_return_error @VERIFY@
        fi
        "$@" <"$work/request" >"$said" 2>&1 &
        turns=40
        while [ "$turns" -gt 0 ] && kill -0 "$!"; do
            sleep 0.2 || { sleep 1; turns=$((turns - 4)); }
            turns=$((turns - 1))
        done
        kill -9 "$!"
        wait "$!"
        status=$?
        if [ "$said" != /dev/null ]; then
            { printf 'slipway_report: %s ended with status %s\n' "$1" "$status"; tail -c 4000 "$said"; } \
                >>"$SLIPWAY_REPORT_LOG"
        fi
        rm -rf "$work"
    ) </dev/null >/dev/null 2>&1 || :
    return 0
}
