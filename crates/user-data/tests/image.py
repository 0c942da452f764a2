"""What cloud-init's data source is in a system: the folder with its files in, JSON out. ds-identify has run before."""

import json
import logging
import os
import sys

from cloudinit import helpers, sources, stages, util
from cloudinit.sources import DataSourceNoCloud

logging.disable(logging.CRITICAL)
folder = sys.argv[1]
# Nothing but the folder counts: neither this machine's disks nor its firmware and command line.
with open(os.path.join(folder, "proc/cmdline")) as file:
    cmdline = file.read().strip()
util.get_cmdline = lambda: cmdline
DataSourceNoCloud.util.find_devs_with = lambda *_: []
DataSourceNoCloud.dmi.read_dmi_data = lambda _: ""
stages.CLOUD_CONFIG = os.path.join(folder, "etc/cloud/cloud.cfg")
stages.RUN_CLOUD_CONFIG = os.path.join(folder, "run/cloud-init/cloud.cfg")

config = stages.fetch_base_config()
paths = dict(config["system_info"]["paths"])
paths["cloud_dir"] = folder + paths["cloud_dir"]
paths = helpers.Paths(paths)
# Of the sources that need no network, only this one is there.
found = sources.list_sources(config.get("datasource_list") or [], [sources.DEP_FILESYSTEM], ["cloudinit.sources"])
result = {"found": False}
if DataSourceNoCloud.DataSourceNoCloud in found:
    source = DataSourceNoCloud.DataSourceNoCloud(config, None, paths)
    try:
        result["found"] = source._get_data()
    except Exception as error:
        result["error"] = str(error)
    if result["found"]:
        result["user_data"] = util.decode_binary(source.get_userdata_raw())
        result["instance_id"] = source.get_instance_id()
        # The order of stages._find_networking_config.
        result["network"] = config.get("network") or source.network_config
        result["allowed"] = util.get_cfg_option_bool(config, "allow_userdata", True)
        result["vendor_data"] = util.is_true(config.get("vendor_data", {}).get("enabled"))
json.dump(result, sys.stdout)
