-- A rotated key is frozen (CR-26): what proves it, how it is derived, who holds it and when it was rotated stay as they
-- were. Two changes are left: its key material is forgotten, and a re-wrap puts the same bytes under a newer master key.
CREATE FUNCTION "keep_rotated_key"() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	rewrap boolean := coalesce(current_setting('strongroom.rewrap', true), '') = 'on';
BEGIN
	IF (NEW.id, NEW.organization_id, NEW.project_id, NEW.version, NEW.managed, NEW.iterations, NEW.is_active, NEW.created_at, NEW.rotated_at)
			IS DISTINCT FROM (OLD.id, OLD.organization_id, OLD.project_id, OLD.version, OLD.managed, OLD.iterations, OLD.is_active, OLD.created_at, OLD.rotated_at)
		OR (NEW.hint IS DISTINCT FROM OLD.hint)
		OR (NEW.key_check IS NULL) <> (OLD.key_check IS NULL)
		OR (NOT rewrap AND (NEW.salt, NEW.key_check) IS DISTINCT FROM (OLD.salt, OLD.key_check))
		OR (NEW.key_string IS NOT NULL AND NEW.key_string IS DISTINCT FROM OLD.key_string AND NOT (rewrap AND OLD.key_string IS NOT NULL))
		OR (NEW.data_key IS NOT NULL AND NEW.data_key IS DISTINCT FROM OLD.data_key AND NOT (rewrap AND OLD.data_key IS NOT NULL))
	THEN
		RAISE EXCEPTION 'a rotated key is never changed' USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NEW;
END $$;--> statement-breakpoint
CREATE TRIGGER "keep_rotated_key" BEFORE UPDATE ON "encryption_keys" FOR EACH ROW WHEN (OLD.rotated_at IS NOT NULL) EXECUTE FUNCTION "keep_rotated_key"();
