ALTER TABLE "api_tokens" ADD COLUMN "created_by_type" varchar(16);--> statement-breakpoint
ALTER TABLE "api_tokens" ADD COLUMN "created_by_id" bigint;--> statement-breakpoint
ALTER TABLE "api_tokens" ADD COLUMN "created_by_name" varchar(255);--> statement-breakpoint
ALTER TABLE "api_tokens" ADD COLUMN "user_id" bigint;--> statement-breakpoint
ALTER TABLE "api_tokens" ADD COLUMN "grant_id" bigint;--> statement-breakpoint
ALTER TABLE "api_tokens" ADD CONSTRAINT "api_tokens_user_id_users_id_fk" FOREIGN KEY ("user_id") REFERENCES "public"."users"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "api_tokens" ADD CONSTRAINT "api_tokens_grant_id_oauth_grants_id_fk" FOREIGN KEY ("grant_id") REFERENCES "public"."oauth_grants"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "api_tokens_user_id_index" ON "api_tokens" USING btree ("user_id");--> statement-breakpoint
CREATE INDEX "api_tokens_grant_id_index" ON "api_tokens" USING btree ("grant_id");