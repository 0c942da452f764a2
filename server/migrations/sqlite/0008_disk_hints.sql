-- Which disk what is installed on a node goes to, whatever the operating system says.
ALTER TABLE nodes ADD COLUMN disk_json TEXT;
