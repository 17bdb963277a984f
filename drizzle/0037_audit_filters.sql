DROP INDEX CONCURRENTLY IF EXISTS "former_slugs_by_owner";--> statement-breakpoint
CREATE INDEX CONCURRENTLY "former_slugs_by_owner" ON "former_slugs" USING btree ("owner_id") WHERE owner_id IS NOT NULL;--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS "audit_events_by_resource_and_actor";--> statement-breakpoint
CREATE INDEX CONCURRENTLY "audit_events_by_resource_and_actor" ON "audit_events" USING btree ("organization_id","resource_type","resource_id","actor_type","actor_id","action","occurred_at","seq");--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS "audit_events_by_actor";--> statement-breakpoint
CREATE INDEX CONCURRENTLY "audit_events_by_actor" ON "audit_events" USING btree ("organization_id","actor_type","actor_id","action","occurred_at","seq");--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS "audit_events_by_resource";--> statement-breakpoint
CREATE INDEX CONCURRENTLY "audit_events_by_resource" ON "audit_events" USING btree ("organization_id","resource_type","resource_id","action","occurred_at","seq");