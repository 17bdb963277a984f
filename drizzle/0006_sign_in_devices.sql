CREATE TABLE "sign_in_devices" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "sign_in_devices_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"token_hash" "bytea" NOT NULL,
	"user_id" bigint NOT NULL,
	"expires_at" timestamp (3) with time zone NOT NULL
);
--> statement-breakpoint
ALTER TABLE "sign_in_devices" ADD CONSTRAINT "sign_in_devices_user_id_users_id_fk" FOREIGN KEY ("user_id") REFERENCES "public"."users"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE UNIQUE INDEX "sign_in_devices_user_id_token_hash_index" ON "sign_in_devices" USING btree ("user_id","token_hash");--> statement-breakpoint
CREATE INDEX "sign_in_devices_token_hash_index" ON "sign_in_devices" USING btree ("token_hash");--> statement-breakpoint
CREATE INDEX "sign_in_devices_expires_at_index" ON "sign_in_devices" USING btree ("expires_at");