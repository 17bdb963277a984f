ALTER TABLE "refunds" ADD COLUMN "noted_status" varchar(16);--> statement-breakpoint
ALTER TABLE "refunds" ADD COLUMN "checked_at" timestamp (3) with time zone;--> statement-breakpoint
-- What operators noted down so far, as the audit has it: what became of a refund may be what its provider said later.
UPDATE "refunds" r SET "noted_status" = CASE e."action" WHEN 'refund.pay' THEN 'succeeded' ELSE 'failed' END
FROM "audit_events" e
WHERE e."organization_id" = r."organization_id" AND e."resource_type" = 'refund' AND e."resource_id" = r."id"
	AND e."action" IN ('refund.pay', 'refund.fail') AND e."actor_type" = 'operator';
