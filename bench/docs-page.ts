/**
 * `node dist/bench/docs-page.js [ROUNDS]`: measures how long /docs takes in Chromium until the first operation is
 * visible, on a first visit (empty cache) and on a later one. The service runs in this process.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { launch, skip } from '../test/helpers/browser.ts'
import { withServiceHere } from './event-loop.ts'

if (skip !== false) throw new Error(skip)
const rounds = Number(process.argv[2] ?? 10)
const folder = mkdtempSync(join(tmpdir(), 'docs-page-'))
const visits: Record<'first' | 'later', number[]> = { first: [], later: [] }

await withServiceHere({ DATA_DIR: join(folder, 'data'), PORT: '0' }, async (url) => {
  const browser = await launch()
  for (let round = 0; round < rounds; round++) {
    const context = await browser.newContext()
    for (const visit of ['first', 'later'] as const) {
      const page = await context.newPage()
      const begun = performance.now()
      await page.goto(`${url}/docs`, { waitUntil: 'commit' })
      await page.locator('.opblock').first().waitFor({ state: 'visible' })
      visits[visit].push(Math.round(performance.now() - begun))
      await page.close()
    }
    await context.close()
  }
  await browser.close()
})
rmSync(folder, { recursive: true, force: true })

for (const [visit, times] of Object.entries(visits)) {
  const inOrder = [...times].sort((one, other) => one - other)
  console.log(`${visit} visit: median ${inOrder[Math.floor(rounds / 2)]} ms of ${times.join(', ')}`)
}
