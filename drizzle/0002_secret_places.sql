CREATE INDEX "secrets_target_id_index" ON "secrets" USING btree ("target_id");--> statement-breakpoint
CREATE INDEX "secrets_environment_id_index" ON "secrets" USING btree ("environment_id");