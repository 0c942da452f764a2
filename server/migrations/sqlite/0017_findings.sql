-- What was found in the file of an image: what it is made for, or why no machine can use it. It is found anew when the
-- file has changed.
CREATE TABLE findings (
    digest TEXT PRIMARY KEY,
    finding_json TEXT NOT NULL
);
