ALTER TABLE "former_slugs" ADD COLUMN "owner_id" bigint;--> statement-breakpoint
CREATE INDEX "former_slugs_by_owner" ON "former_slugs" USING btree ("owner_id") WHERE owner_id IS NOT NULL;