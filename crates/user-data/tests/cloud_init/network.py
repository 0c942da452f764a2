"""What cloud-init itself makes of network configurations: a JSON list of texts in, a JSON list of outcomes out.

An outcome is "used", "disabled", "ignored" (cloud-init makes a configuration of its own) or "failed: ...". A version 2
that cloud-init cannot carry out itself is "passed on" to netplan, if that is installed.
"""

import json
import logging
import sys

from cloudinit import net, util
from cloudinit.net.network_state import parse_net_config_data


def outcome(text):
    """As in cloudinit/sources/DataSourceNoCloud.py and cloudinit/stages.py."""
    config = util.load_yaml(text) if text else None
    if config and "network" in config:
        config = config["network"]
    if net.is_disabled_cfg(config):
        return "disabled"
    if not config:
        return "ignored"
    try:
        net.extract_physdevs(config)
    except Exception as error:
        return f"failed: {error!r}"
    try:
        parse_net_config_data(config, skip_broken=False)
        return "used"
    except Exception as error:
        return "passed on" if config.get("version") == 2 else f"failed: {error!r}"


def main():
    logging.disable(logging.CRITICAL)
    net.device_driver = net.device_devid = lambda _: None
    json.dump([outcome(text) for text in json.load(sys.stdin)], sys.stdout)


main()
