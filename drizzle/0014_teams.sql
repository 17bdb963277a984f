CREATE TABLE "team_members" (
	"organization_id" char(26) NOT NULL,
	"team_id" char(26) NOT NULL,
	"user_id" bigint NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"mac" "bytea",
	CONSTRAINT "team_members_organization_id_team_id_user_id_pk" PRIMARY KEY("organization_id","team_id","user_id")
);
--> statement-breakpoint
CREATE TABLE "team_projects" (
	"organization_id" char(26) NOT NULL,
	"team_id" char(26) NOT NULL,
	"project_id" char(26) NOT NULL,
	"role" varchar(32) NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"mac" "bytea",
	CONSTRAINT "team_projects_organization_id_team_id_project_id_pk" PRIMARY KEY("organization_id","team_id","project_id")
);
--> statement-breakpoint
CREATE TABLE "teams" (
	"id" char(26) NOT NULL,
	"organization_id" char(26) NOT NULL,
	"name" varchar(255) NOT NULL,
	"slug" varchar(64) NOT NULL,
	"description" text,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"mac" "bytea",
	CONSTRAINT "teams_organization_id_id_pk" PRIMARY KEY("organization_id","id")
);
--> statement-breakpoint
ALTER TABLE "team_members" ADD CONSTRAINT "team_members_in_team" FOREIGN KEY ("organization_id","team_id") REFERENCES "public"."teams"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "team_members" ADD CONSTRAINT "team_members_are_members" FOREIGN KEY ("organization_id","user_id") REFERENCES "public"."members"("organization_id","user_id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "team_projects" ADD CONSTRAINT "team_projects_in_team" FOREIGN KEY ("organization_id","team_id") REFERENCES "public"."teams"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "team_projects" ADD CONSTRAINT "team_projects_in_project" FOREIGN KEY ("organization_id","project_id") REFERENCES "public"."projects"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "teams" ADD CONSTRAINT "teams_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "team_members_organization_id_user_id_index" ON "team_members" USING btree ("organization_id","user_id");--> statement-breakpoint
CREATE INDEX "team_projects_organization_id_project_id_index" ON "team_projects" USING btree ("organization_id","project_id");--> statement-breakpoint
CREATE UNIQUE INDEX "teams_slug_taken" ON "teams" USING btree ("organization_id","slug");