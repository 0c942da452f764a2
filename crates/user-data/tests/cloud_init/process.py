"""What cloud-init itself makes of user-data: a JSON list of user-data in base64 in, a JSON list of outcomes out.

With the argument "unchecked" the schema is not asked, which takes most of the time.
"""

import base64
import json
import logging
import sys
import tempfile

from cloudinit import handlers, helpers, user_data
from cloudinit.config import schema
from cloudinit.handlers.cloud_config import CloudConfigPartHandler
from cloudinit.handlers.jinja_template import JinjaTemplatePartHandler
from cloudinit.settings import PER_INSTANCE

# What "#include" finds on the network.
NETWORK = {
    "http://site/config": b"#cloud-config\nincluded: 1\nphone_home: {url: http://old/}\n",
    "http://site/script": b"#!/bin/sh\necho included\n",
}
INSTANCE = {"v1": {"local_hostname": "node", "region": "x"}, "ds": {"meta_data": {"lines": "a\nb"}}}


class Answer:
    """A response of the network."""

    code = 200

    def __init__(self, contents):
        self.contents = contents

    def ok(self):
        return True


class Source:
    """A data source, of which only the instance is asked for."""

    def get_instance_id(self):
        return "i-1"


class Recorder(handlers.Handler):
    """Takes down what would be run."""

    prefixes = ["#!"]

    def __init__(self, parts):
        super().__init__(PER_INSTANCE)
        self.parts = parts

    def handle_part(self, _data, ctype, filename, payload, _frequency):
        self.parts.append([ctype, filename, payload])


def outcome(blob):
    """The merged cloud-config, what the schema says of it, and every other part."""
    with tempfile.TemporaryDirectory() as folder:
        paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder, "templates_dir": folder}, Source())
        with open(paths.get_runpath("instance_data_sensitive"), "w", encoding="utf-8") as file:
            json.dump(INSTANCE, file)
        message = user_data.UserDataProcessor(paths).process(blob)
        parts = []
        config = CloudConfigPartHandler(paths)
        jinja = JinjaTemplatePartHandler(paths, sub_handlers=[config, Recorder(parts)])
        known = {ctype: handler for handler in (config, jinja) for ctype in handler.list_types()}

        def take(_data, filename, payload, headers):
            ctype = headers["Content-Type"]
            if ctype in known:
                handlers.run_part(known[ctype], None, filename, payload, PER_INSTANCE, headers)
            elif ctype in handlers.INCLUSION_TYPES_MAP.values():
                parts.append([ctype, filename, payload])

        handlers.call_begin(config, None, PER_INSTANCE)
        handlers.walk(message, take, {})
        return {"config": plain(config.cloud_buf), "schema": problems(config.cloud_buf), "parts": parts}


def plain(value, around=()):
    """The value as JSON has words for it, inside others of which it may be one."""
    if id(value) in around:
        return "cycle"
    around = (*around, id(value))
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): plain(item, around) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, around) for item in value]
    is_small = isinstance(value, int) and abs(value) < 2**53
    return value if value is None or isinstance(value, str) or is_small else repr(value)


def problems(config):
    """What cloud-init's schema has against a cloud-config."""
    if sys.argv[1:] == ["unchecked"]:
        return []
    try:
        schema.validate_cloudconfig_schema(config or {}, schema.get_schema(), strict=True)
        return []
    except schema.SchemaValidationError as error:
        # Formats are checked where the package that does so happens to be installed.
        return [str(problem) for problem in error.schema_errors if " is not a 'uri'" not in str(problem)]


def main():
    logging.disable(logging.CRITICAL)
    user_data.read_file_or_url = lambda url, **_: Answer(NETWORK.get(url, b""))
    outcomes = []
    for encoded in json.load(sys.stdin):
        try:
            outcomes.append(outcome(base64.b64decode(encoded)))
        except Exception as error:  # Whatever it is, cloud-init has not understood it.
            outcomes.append({"config": None, "schema": [], "parts": [], "error": str(error)})
    # Bytes that cloud-init could not read are halves of characters in its texts.
    sys.stdout.buffer.write(json.dumps(outcomes, ensure_ascii=False).encode("utf-8", "replace"))


main()
