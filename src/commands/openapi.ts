import { buildApp } from '../app.ts'
import { loadConfig } from '../config.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../crypto/keyring.ts'
import type { Database } from '../db/database.ts'
import { renderYaml } from '../http/document.ts'

/** The published document as YAML. It comes from the routes alone: no database is opened. */
export async function renderOpenApi (): Promise<string> {
  const app = await buildApp({
    config: { ...loadConfig({}), logLevel: 'silent' },
    database: { } as Database,
    keyring: createKeyring([parseMasterKey(generateMasterKey().text)])
  })
  await app.ready()
  const yaml = renderYaml(app.swagger())
  await app.close()
  return yaml
}
