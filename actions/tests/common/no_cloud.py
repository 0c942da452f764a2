"""What cloud-init's NoCloud source makes of a seed: the folder with it in, JSON out."""

import json
import logging
import os
import sys

from cloudinit import helpers
from cloudinit.sources import DataSourceNoCloud

logging.disable(logging.CRITICAL)
# Nothing but the folder counts: neither this machine's disks nor its firmware and command line.
DataSourceNoCloud.util.find_devs_with = lambda *_: []
DataSourceNoCloud.dmi.read_dmi_data = lambda _: ""
DataSourceNoCloud.util.get_cmdline = lambda: ""
folder = sys.argv[1]
paths = helpers.Paths({"cloud_dir": folder, "run_dir": os.path.join(folder, "run")})
source = DataSourceNoCloud.DataSourceNoCloud({}, None, paths)
found = source._get_data()
json.dump(
    {
        "found": found,
        "instance_id": source.get_instance_id(),
        "hostname": source.metadata.get("local-hostname"),
        "keys": source.get_public_ssh_keys(),
        "user_data": DataSourceNoCloud.util.decode_binary(source.get_userdata_raw()),
        "network": source.network_config,
    },
    sys.stdout,
)
