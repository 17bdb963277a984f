CREATE TABLE "invitation_mails" (
	"organization_id" char(26) NOT NULL,
	"email_normalized" varchar(320) NOT NULL,
	"sent_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "invitation_mails_organization_id_email_normalized_pk" PRIMARY KEY("organization_id","email_normalized")
);
--> statement-breakpoint
CREATE TABLE "invitations" (
	"organization_id" char(26) NOT NULL,
	"id" char(26) NOT NULL,
	"email" varchar(320) NOT NULL,
	"email_normalized" varchar(320) NOT NULL,
	"role" varchar(32) NOT NULL,
	"invited_by_type" varchar(16),
	"invited_by_id" bigint,
	"invited_by_name" varchar(255),
	"token_hash" "bytea",
	"expires_at" timestamp (3) with time zone NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"mac" "bytea",
	CONSTRAINT "invitations_organization_id_id_pk" PRIMARY KEY("organization_id","id")
);
--> statement-breakpoint
CREATE TABLE "personal_events" (
	"id" bigint PRIMARY KEY NOT NULL,
	"user_id" bigint NOT NULL,
	"occurred_at" timestamp (3) with time zone NOT NULL,
	"action" varchar(64) NOT NULL,
	"actor_type" varchar(16) NOT NULL,
	"ip" varchar(64),
	"user_agent" varchar(256),
	"details" jsonb,
	"mac" "bytea"
);
--> statement-breakpoint
ALTER TABLE "invitation_mails" ADD CONSTRAINT "invitation_mails_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "invitations" ADD CONSTRAINT "invitations_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "personal_events" ADD CONSTRAINT "personal_events_user_id_users_id_fk" FOREIGN KEY ("user_id") REFERENCES "public"."users"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "invitation_mails_sent_at_index" ON "invitation_mails" USING btree ("sent_at");--> statement-breakpoint
CREATE UNIQUE INDEX "invitations_one_of_address" ON "invitations" USING btree ("organization_id","email_normalized");--> statement-breakpoint
CREATE UNIQUE INDEX "invitations_by_token" ON "invitations" USING btree ("organization_id","token_hash");--> statement-breakpoint
CREATE INDEX "invitations_email_normalized_index" ON "invitations" USING btree ("email_normalized");--> statement-breakpoint
CREATE INDEX "invitations_expires_at_index" ON "invitations" USING btree ("expires_at");--> statement-breakpoint
CREATE INDEX "personal_events_user_id_occurred_at_id_index" ON "personal_events" USING btree ("user_id","occurred_at","id");--> statement-breakpoint
CREATE INDEX "personal_events_occurred_at_index" ON "personal_events" USING btree ("occurred_at");