ALTER TABLE "api_tokens" ADD COLUMN "announced_end" timestamp (3) with time zone;--> statement-breakpoint
ALTER TABLE "invitations" ADD COLUMN "place" jsonb;--> statement-breakpoint
ALTER TABLE "invitations" ADD COLUMN "place_role" varchar(32);--> statement-breakpoint
ALTER TABLE "teams" ADD COLUMN "is_of_place" boolean;