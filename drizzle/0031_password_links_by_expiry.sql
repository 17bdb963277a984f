DROP INDEX CONCURRENTLY IF EXISTS "password_links_expires_at_index";--> statement-breakpoint
CREATE INDEX CONCURRENTLY "password_links_expires_at_index" ON "password_links" USING btree ("expires_at");
