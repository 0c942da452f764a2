-- How the installed system of a node is on the network, and who may log in there.
ALTER TABLE nodes ADD COLUMN network_json TEXT;
ALTER TABLE nodes ADD COLUMN ssh_keys_json TEXT NOT NULL DEFAULT '[]';
