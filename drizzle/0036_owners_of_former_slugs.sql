ALTER TABLE "former_slugs" ADD COLUMN "owner_id" bigint;
