-- Not of rows that are there: a start that looks through them all would take long, and would fail where somebody has put
-- one in below. `audit verify` finds those.
ALTER TABLE "audit_events" ADD CONSTRAINT "audit_events_numbers" CHECK ("audit_events"."seq" > 0) NOT VALID;