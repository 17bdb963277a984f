ALTER TABLE "organization_counters" DROP CONSTRAINT "organization_counters_organization_id_organizations_id_fk";
--> statement-breakpoint
ALTER TABLE "audit_events" ADD COLUMN "chain_kid" varchar(32);--> statement-breakpoint
ALTER TABLE "audit_events" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "organization_counters" ADD COLUMN "event_head" "bytea";--> statement-breakpoint
CREATE INDEX "audit_events_by_time" ON "audit_events" USING btree ("organization_id","occurred_at","seq");--> statement-breakpoint
CREATE INDEX "audit_events_by_action" ON "audit_events" USING btree ("organization_id","action","occurred_at","seq");--> statement-breakpoint
CREATE INDEX "audit_events_by_actor" ON "audit_events" USING btree ("organization_id","actor_type","actor_id","occurred_at","seq");--> statement-breakpoint
CREATE INDEX "audit_events_by_resource" ON "audit_events" USING btree ("organization_id","resource_type","resource_id","occurred_at","seq");--> statement-breakpoint
-- An event is never changed and never goes away (AU-08), whoever asks. One from before events were chained gets its MAC,
-- once, and nothing else.
CREATE FUNCTION "keep_audit_event"() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	before "audit_events";
BEGIN
	IF TG_OP = 'UPDATE' THEN
		before := NEW;
		before.chain_kid := NULL;
		before.mac := NULL;
		IF NEW.chain_kid IS NOT NULL AND NEW.mac IS NOT NULL AND before IS NOT DISTINCT FROM OLD THEN
			RETURN NEW;
		END IF;
	END IF;
	RAISE EXCEPTION 'an audit event is never changed' USING ERRCODE = 'integrity_constraint_violation';
END $$;--> statement-breakpoint
CREATE TRIGGER "keep_audit_event" BEFORE UPDATE OR DELETE ON "audit_events" FOR EACH ROW EXECUTE FUNCTION "keep_audit_event"();--> statement-breakpoint
CREATE TRIGGER "keep_audit_events" BEFORE TRUNCATE ON "audit_events" FOR EACH STATEMENT EXECUTE FUNCTION "keep_audit_event"();
