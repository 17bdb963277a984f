ALTER TABLE "late_events" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "organization_counters" ADD COLUMN "stored_bytes" bigint DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "secrets" ADD COLUMN "version_bytes" bigint DEFAULT 0 NOT NULL;--> statement-breakpoint
-- What is there is counted once; from here on each statement that changes it does.
UPDATE "secrets" s SET "version_bytes" = v."bytes"
FROM (SELECT "organization_id", "history_id", sum("size_bytes") AS "bytes" FROM "secret_versions" GROUP BY 1, 2) v
WHERE v."organization_id" = s."organization_id" AND v."history_id" = s."history_id";--> statement-breakpoint
UPDATE "organization_counters" c SET "stored_bytes" = s."bytes"
FROM (SELECT "organization_id", sum("version_bytes" + "size_bytes") AS "bytes" FROM "secrets" GROUP BY 1) s
WHERE s."organization_id" = c."organization_id" AND EXISTS (SELECT FROM "organizations" o WHERE o."id" = c."organization_id");
