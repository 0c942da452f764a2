"""Has a data source of cloud-init ask a URL, and prints what it found as JSON.

Arguments: the name of the data source, as in `datasource:`; the URL; a folder to write to.
"""

import json
import sys

from cloudinit import distros, helpers
from cloudinit.sources import DataSourceEc2, DataSourceNoCloud

name, url, folder = sys.argv[1:]
CONFIGS = {
    "NoCloud": (DataSourceNoCloud.DataSourceNoCloudNet, {"seedfrom": url, "fs_label": None}),
    # Only its own makers' machines are known by their firmware.
    "Ec2": (DataSourceEc2.DataSourceEc2, {"metadata_urls": [url], "strict_id": False}),
}
source, config = CONFIGS[name]
paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})
found = source({"datasource": {name: config}}, distros.fetch("debian")("debian", {}, paths), paths)
if not found.get_data():
    sys.exit(f"{name} found nothing at the URL")
json.dump(
    {
        "instance_id": found.get_instance_id(),
        "hostname": found.get_hostname().hostname,
        "ssh_keys": found.get_public_ssh_keys(),
        "user_data": found.get_userdata_raw().decode(),
        "metadata": found.metadata,
    },
    sys.stdout,
)
