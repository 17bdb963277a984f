/**
 * `node dist/bench/console.js [ROUNDS]`: measures the console in Chromium: the first visit of a person with a session
 * until the matrix is usable, a key in the filter of the matrix (200 names, 16 columns) and of a level (10,000 names),
 * and scrolling that level. Prints medians and maxima in milliseconds. The service runs in this process.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { SCOPE_NAMES } from '../schemas/scopes.ts'
import { makeOrganization } from '../test/helpers/app.ts'
import { launch, signIn, skip } from '../test/helpers/browser.ts'
import { issuePair, makePerson } from '../test/helpers/people.ts'
import { withServiceHere } from './event-loop.ts'
import { posting, send } from './seed.ts'
import { median } from './table.ts'

if (skip !== false) throw new Error(skip)
const rounds = Number(process.argv[2] ?? 5)
const folder = mkdtempSync(join(tmpdir(), 'console-'))
const times = new Map<string, number[]>()
const record = (row: string, time: number) => times.set(row, [...times.get(row) ?? [], time])

await withServiceHere({ DATA_DIR: join(folder, 'data'), PORT: '0' }, async (url, opened) => {
  const organization = await makeOrganization(opened.database.db, opened.keyring, { slug: 'nimbus' })
  const person = await makePerson(opened, { [organization]: 'owner' })
  const { access } = await issuePair(opened, person, SCOPE_NAMES)
  const post = (path: string, body: object) => send(url, posting(access, `/api/v1/${organization}${path}`, body))
  await post('/projects', { name: 'Grid', slug: 'grid' })
  for (const target of ['backend', 'website', 'worker']) {
    await post('/grid/targets', { name: target })
    for (const name of ['test', 'stage', 'live', 'demo']) await post(`/grid/${target}/environments`, { name })
  }
  await post('/projects', { name: 'Long', slug: 'long' })
  const names = (count: number) => Array.from({ length: count }, (_, i) => `NAME_${String(i).padStart(4, '0')}=1\n`).join('')
  await post('/secrets/store', { project: 'grid', plaintext: names(200) })
  await post('/secrets/store', { project: 'long', plaintext: names(10_000) })

  const browser = await launch()
  for (let round = 0; round < rounds; round++) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 } })
    const page = await context.newPage()
    await page.goto(`${url}/account`)
    await signIn(page, person)
    await page.getByRole('heading', { name: 'Your account', exact: true }).waitFor()
    const begun = performance.now()
    await page.goto(`${url}/console/nimbus/grid`, { waitUntil: 'commit' })
    await page.getByRole('rowheader', { name: 'NAME_0000' }).waitFor()
    record('first visit until the matrix is usable', performance.now() - begun)
    const filter = page.getByLabel('Only names that contain')
    // Each of the timed keys leaves out names of the rows in sight.
    await filter.fill('name_0')
    for (const key of '190') record('a key in the filter of 200 names × 16 columns', await timeOf(page, type(key)))
    await page.goto(`${url}/console/nimbus/long/-/level`)
    await page.getByRole('rowheader', { name: 'NAME_0000' }).waitFor()
    await filter.fill('name_')
    for (const key of '999') record('a key in the filter of 10,000 names', await timeOf(page, type(key)))
    await filter.fill('')
    await page.getByRole('rowheader', { name: 'NAME_0000' }).waitFor()
    for (let i = 1; i <= 10; i++) {
      const scroll = `document.querySelector('.names').scrollTo(0, ${i * 30_000})`
      record('scroll by 30,000 pixels in 10,000 names', await timeOf(page, scroll))
    }
    await context.close()
  }
  await browser.close()
})
rmSync(folder, { recursive: true, force: true })

for (const [row, figures] of times) {
  console.log(`${row}: median ${median(figures).toFixed(0)} ms, at most ${Math.max(...figures).toFixed(0)} ms`)
}

/** Types a key into the filter. */
function type (key: string): string {
  return `const field = document.querySelector('[name=filter]')
    field.value += ${JSON.stringify(key)}
    field.dispatchEvent(new InputEvent('input', { bubbles: true }))`
}

/** The milliseconds from an action in the page until the frame in which the rows have changed; at most 2 seconds. */
async function timeOf (page: Page, action: string): Promise<number> {
  return page.evaluate(`new Promise((resolve) => {
    const rows = () => document.querySelector('tbody').innerText
    const [before, start] = [rows(), performance.now()]
    const passed = () => performance.now() - start
    const look = () => rows() !== before || passed() > 2000 ? requestAnimationFrame(() => resolve(passed())) : setTimeout(look)
    ${action}
    look()
  })`)
}
