CREATE TABLE "service_keys" (
	"name" varchar(32) PRIMARY KEY NOT NULL,
	"wrapped" "bytea" NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
ALTER TABLE "api_tokens" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "environments" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "members" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "oauth_clients" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "oauth_codes" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "oauth_grants" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "oauth_requests" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "oauth_tokens" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "password_links" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "projects" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "secrets" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "sessions" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "targets" ADD COLUMN "mac" "bytea";--> statement-breakpoint
ALTER TABLE "users" ADD COLUMN "mac" "bytea";