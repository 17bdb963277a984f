import { readdirSync, readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { base32 } from 'oslo/encoding'

// Known data in the databases of releases in test/releases/.

/** The key, credentials and documents of a kept database. */
export interface Contents {
  master_key: string
  organization: string
  /** An API token with all scopes. */
  token: string
  /** An API token that was rotated, and that can read only the project `atlas`. */
  ci_token: string
  /** The owner of the organization. `second_factor` is the TOTP secret in base32. */
  person: { email: string, password: string, second_factor: string }
  /** Paths below the organization, and the documents that each returns. */
  documents: Record<string, string[]>
  /** A former version, and what the path returns after its restore. */
  former_version: { id: number, path: string, documents: string[] }
}

const FOLDER = 'test/releases'

/** The releases with a kept database, oldest first. */
export const keptReleases = (): string[] => readdirSync(FOLDER).flatMap((name) =>
  /^(\d+\.\d+\.\d+)\.sql\.gz$/.exec(name)?.[1] ?? [])
  .sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))

export const readContents = (release: string): Contents =>
  JSON.parse(readFileSync(`${FOLDER}/${release}.json`, 'utf8')) as Contents

export const readDump = (release: string): string => gunzipSync(readFileSync(`${FOLDER}/${release}.sql.gz`)).toString()

export const readBackup = (release: string): Buffer => gunzipSync(readFileSync(`${FOLDER}/${release}.backup.gz`))

/** The output of `pg_dump` without the lines that only `psql` or a newer PostgreSQL understands. */
export const portable = (dump: string): string => dump.replace(/^(?:\\(?:un)?restrict |SET transaction_timeout ).*\n/gm, '')

export const readTotpSecret = (text: string): Buffer => Buffer.from(base32.decode(text, { strict: false }))
