ALTER TABLE "secret_versions" ADD COLUMN "created_through" varchar(16);--> statement-breakpoint
ALTER TABLE "secret_versions" ADD COLUMN "application_name" varchar(255);