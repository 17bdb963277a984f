DROP INDEX "charges_to_submit";--> statement-breakpoint
DROP INDEX "refunds_to_submit";--> statement-breakpoint
ALTER TABLE "charges" ADD COLUMN "asked_at" timestamp (3) with time zone;--> statement-breakpoint
ALTER TABLE "refunds" ADD COLUMN "asked_at" timestamp (3) with time zone;--> statement-breakpoint
-- Nobody knows whether these were told: asked again, by their ids, they are done once.
UPDATE "charges" SET "asked_at" = "created_at" WHERE "submitted_at" is null AND "provider" <> 'manual';--> statement-breakpoint
UPDATE "refunds" SET "asked_at" = "created_at" WHERE "submitted_at" is null AND "provider" <> 'manual';--> statement-breakpoint
CREATE INDEX "charges_to_submit" ON "charges" USING btree ("provider","asked_at" NULLS FIRST,"id") WHERE "charges"."submitted_at" is null;--> statement-breakpoint
CREATE INDEX "refunds_to_submit" ON "refunds" USING btree ("provider","asked_at" NULLS FIRST,"id") WHERE "refunds"."submitted_at" is null;