-- Plans are rows: the operator may change them. Null is without limit.
INSERT INTO "plans" ("name", "retention_days", "api_per_minute", "max_projects", "max_members") VALUES
	('free', 7, 100, 5, 5),
	('pro', 30, 100, 50, 25),
	('team', 90, 100, NULL, 100),
	('enterprise', 365, 100, NULL, NULL),
	('self-hosted', NULL, 100, NULL, NULL);
