/**
 * `node dist/bench/pages.js [ROUNDS]`: measures how long two pages take in Chromium, on a first visit (empty cache) and
 * on a later visit: `/docs` until its first operation is visible, and `/console` of a person with a session until the
 * list of organizations is visible. Prints medians in milliseconds. The service runs in this process.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { makeOrganization } from '../test/helpers/app.ts'
import { launch, signIn, skip } from '../test/helpers/browser.ts'
import { makePerson } from '../test/helpers/people.ts'
import { withServiceHere } from './event-loop.ts'
import { median } from './table.ts'

if (skip !== false) throw new Error(skip)
const rounds = Number(process.argv[2] ?? 10)
const folder = mkdtempSync(join(tmpdir(), 'pages-'))
const SHOWN = {
  '/docs': (page: Page) => page.locator('.opblock'),
  '/console': (page: Page) => page.getByRole('link', { name: 'Nimbus' })
}
const times = new Map<string, number[]>()

await withServiceHere({ DATA_DIR: join(folder, 'data'), PORT: '0' }, async (url, opened) => {
  const organization = await makeOrganization(opened.database.db, opened.keyring)
  const person = await makePerson(opened, { [organization]: 'owner' })
  const browser = await launch()
  for (let round = 0; round < rounds; round++) {
    const context = await browser.newContext()
    const account = await context.newPage()
    await account.goto(`${url}/account`)
    await signIn(account, person)
    await account.getByRole('heading', { name: 'Your account', exact: true }).waitFor()
    for (const [path, shown] of Object.entries(SHOWN)) {
      for (const visit of ['first', 'later']) {
        const page = await context.newPage()
        const begun = performance.now()
        await page.goto(`${url}${path}`, { waitUntil: 'commit' })
        await shown(page).first().waitFor({ state: 'visible' })
        const row = `${path}, ${visit} visit`
        times.set(row, [...times.get(row) ?? [], Math.round(performance.now() - begun)])
        await page.close()
      }
    }
    await context.close()
  }
  await browser.close()
})
rmSync(folder, { recursive: true, force: true })

for (const [row, figures] of times) console.log(`${row}: median ${median(figures)} ms of ${figures.join(', ')}`)
