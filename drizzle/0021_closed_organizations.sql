ALTER TABLE "api_tokens" DROP CONSTRAINT "api_tokens_organization_id_organizations_id_fk";
--> statement-breakpoint
ALTER TABLE "organization_counters" ADD COLUMN "is_closed" boolean DEFAULT false NOT NULL;--> statement-breakpoint
CREATE INDEX "api_tokens_by_expiry" ON "api_tokens" USING btree ("expires_at");