ALTER TABLE "invoices" ADD COLUMN "reference" varchar(255);--> statement-breakpoint
ALTER TABLE "invoices" ADD COLUMN "note" varchar(1000) DEFAULT '' NOT NULL;