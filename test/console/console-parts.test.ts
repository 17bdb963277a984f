// runs: one database; 60 s
import type { Browser, Page } from 'playwright-core'
import t from 'tap'
import { accessibilityProblems, launch, openWindow, signIn, skip } from '../helpers/browser.ts'
import { button, confirm, follow, look, said, visitConsole } from '../helpers/console-window.ts'
import { sample } from '../helpers/long.ts'
import { makePerson } from '../helpers/people.ts'
import { until } from '../helpers/until.ts'

// The console in Chromium for people with a part of a project, and its tables, errors and keys.

let browser: Browser
t.before(async () => { if (!skip) browser = await launch() })
t.teardown(async () => browser?.close())

const summaries = async (page: Page) => page.locator('main').getByRole('button').allInnerTexts()

for (const width of sample([390, 1280], 2)) {
  t.test(`at ${width} pixels a colleague is invited to one environment, finds a missing name, sets it and undoes`, { skip }, async (t) => {
    const { service, url, nimbus, rosa, page } = await visitConsole(t, browser, width)
    const ada = await makePerson(service, {})
    await nimbus.call('POST', '/nimbus/projects', { name: 'Shop Front', slug: 'shop' })
    await nimbus.call('POST', '/nimbus/shop/targets', { name: 'Backend Services', slug: 'backend' })
    for (const name of ['Test', 'Live']) await nimbus.call('POST', '/nimbus/shop/backend/environments', { name, slug: name.toLowerCase() })
    await nimbus.call('PATCH', '/nimbus/shop/secrets', { set: { SHARED: 'all' } })
    await nimbus.call('PATCH', '/nimbus/shop/backend/test/secrets', { set: { API_KEY: 'one' } })

    // Address, place, role there, send.
    await page.goto(`${url}/console/nimbus/-/people`)
    await signIn(page, rosa)
    await page.getByLabel('E-mail address').fill(ada.email)
    await page.getByLabel('One project or environment').check()
    await page.getByLabel('Project', { exact: true }).selectOption('shop')
    await page.getByLabel('Part of the project').selectOption({ label: 'Backend Services / Live' })
    t.notMatch((await page.getByLabel('Role there').locator('option').allInnerTexts()).join(), /organization|billing/)
    await page.getByLabel('Role there').selectOption('developer')
    await look(t, page, 'invitation to a place')
    await button(page, 'Invite').click()
    await page.getByRole('rowheader', { name: ada.email }).waitFor()
    await page.getByText(/^Developer in Shop Front \/ Backend Services \/ Live/).waitFor()
    await page.goto(`${url}/console/nimbus/shop/-/level/backend/test`)
    await button(page, 'Invite a colleague here…').click()
    await page.getByRole('dialog', { name: 'Invite a colleague to Backend Services / Test' }).getByLabel('Role there').waitFor()
    await page.keyboard.press('Escape')

    const { page: other, wrongs } = await openWindow(t, browser, { viewport: { width, height: 800 }, locale: 'en-GB' })
    await other.goto(`${url}/account`)
    await signIn(other, ada)
    await other.getByText('as guest, with the role developer in Shop Front / Backend Services / Live').waitFor()
    const accept = (await button(other, 'Accept').boundingBox())!
    t.ok(accept.y + accept.height <= 500, 'the invitation is the first thing on the account page')
    await other.goto(`${url}/console/`)
    await other.getByText('invites you as Guest, with the role Developer in Shop Front / Backend Services / Live').waitFor()
    await button(other, /^Accept Nimbus/).click()
    await said(other, 'You are a member now.')
    await follow(other, 'Nimbus')
    const part = other.getByRole('region', { name: 'Parts of projects' })
    t.match(await part.innerText(), /Shop Front\s+Backend Services \/ Live, with values from above/)
    await look(t, other, 'start with a part')
    t.equal(await other.getByText('Create a project').count(), 0)
    for (const hidden of ['People', 'Tokens', 'Workloads', 'Audit', 'Usage']) t.equal(await other.getByRole('link', { name: hidden, exact: true }).count(), 0, hidden)
    await follow(other, 'Shop Front')
    await button(other, 'Add a name…').waitFor()
    await other.getByRole('heading', { name: 'Backend Services / Live', level: 1 }).waitFor()
    t.match(other.url(), /\/shop\/-\/level\/backend\/live$/, 'a person with one level goes to it')
    const links = async (label: string) => other.getByRole('navigation', { name: label }).getByRole('link').allInnerTexts()
    t.strictSame(await links('Project'), ['Live', 'History'], 'there is nothing to compare one level with')
    t.strictSame(await links('Place'), ['Nimbus', 'Shop Front', 'Live'])
    await follow(other, 'Shop Front')
    await other.getByRole('heading', { name: 'Backend Services / Live', level: 1 }).waitFor()
    await nimbus.call('PATCH', '/nimbus/shop/backend/live/secrets', { set: { OLD: '1' } })
    await other.reload()
    await other.getByRole('rowheader', { name: 'OLD' }).waitFor()
    for (const hidden of ['Keys', 'Settings', 'Project document']) t.equal(await other.getByRole('link', { name: hidden, exact: true }).count(), 0, hidden)
    await other.keyboard.press('/')
    await other.getByRole('dialog').getByLabel('Names that contain').fill('old')
    await other.keyboard.press('Enter')
    t.match(await other.locator('.results').innerText(), /OLD\s+Shop Front \/ Backend Services \/ Live/)
    await button(other, 'Close').click()

    // Sets a name, sees who changed another one, and undoes it.
    await button(other, 'Add a name…').click()
    await other.getByLabel('Name', { exact: true }).fill('API_KEY')
    await other.getByLabel('Value', { exact: true }).fill('two')
    await button(other, 'Save value').click()
    await said(other, 'Saved API_KEY in Backend Services / Live.')
    await other.getByRole('rowheader', { name: 'SHARED' }).waitFor()
    await button(other, 'History OLD').click()
    await other.getByRole('region', { name: 'Changes of OLD' }).getByText('by API token Test token').waitFor()
    await button(other, 'Close').click()
    t.equal(await button(other, 'History SHARED').count(), 0, 'the history of the project is hidden')
    await button(other, 'Reveal SHARED').click()
    await other.getByText('all', { exact: true }).waitFor()
    await look(t, other, 'level of a part')
    await button(other, 'Remove name API_KEY').click()
    await said(other, 'Removed API_KEY from Backend Services / Live.')
    await button(other, 'Undo').click()
    await said(other, 'Undone: Backend Services / Live is as it was before.')
    await follow(other, 'History')
    await button(other, /^Names that version/).first().click()
    await other.locator('.timeline .changes').first().waitFor()
    t.equal(await other.getByText('Restore the whole project').count() + await other.getByText('Purge').count(), 0)
    await look(t, other, 'history of a part')
    for (const path of ['/-/level', '/-/level/backend/test', '/-/level/backend']) {
      await other.goto(`${url}/console/nimbus/shop${path}`)
      await other.getByRole('heading', { name: 'Not found', level: 1 }).waitFor()
    }
    t.strictSame(wrongs, [])
  })
}

t.test('on a phone, what a row opens is in sight', { skip }, async (t) => {
  const { url, nimbus, rosa, page } = await visitConsole(t, browser, 390)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  const names = Array.from({ length: 30 }, (_, i) => [`NAME_${i + 10}`, '1'])
  await nimbus.call('PATCH', '/nimbus/shop/secrets', { set: Object.fromEntries(names) })
  await page.goto(`${url}/console/nimbus/shop/-/level`)
  await signIn(page, rosa)
  await page.getByRole('rowheader', { name: 'NAME_10' }).waitFor()
  await page.locator('.names').evaluate((region: unknown) => (region as { scrollTo (x: number, y: number): void }).scrollTo(0, 100_000))
  await button(page, 'History NAME_39').click()
  const change = page.getByRole('region', { name: 'Changes of NAME_39' }).getByRole('listitem').first()
  await change.waitFor()
  await until(async () => {
    const { y = -1, height = 0 } = await change.boundingBox() ?? {}
    return y >= 0 && y + height <= 800
  })
  t.ok(await page.getByRole('rowheader', { name: 'NAME_39' }).isVisible())
})

t.test('a typed value stays while the list scrolls and gets names, also beside names that look like keys', { skip }, async (t) => {
  const { url, nimbus, rosa, page } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop', secret_format: 'json' })
  const names = Array.from({ length: 100 }, (_, i) => `NAME_${i + 100}`)
  const set = Object.fromEntries([...names, 'NAME_105 edit', 'edit NAME_105', 'gap 0', 'name NAME_105'].map((name) => [name, `value of ${name}`]))
  await nimbus.call('PATCH', '/nimbus/shop/secrets', { set })
  await page.goto(`${url}/console/nimbus/shop/-/level`)
  await signIn(page, rosa)
  await button(page, 'Change NAME_105').click()
  const field = page.getByLabel('New value')
  await field.fill('typed')
  const row = page.locator('tbody tr[aria-rowindex]')
  for (const y of [300, 1500, 3000, 0]) {
    const before = await row.allInnerTexts()
    await page.locator('.names').evaluate((region: unknown, y) => (region as { scrollTo (x: number, y: number): void }).scrollTo(0, y), y)
    await until(async () => (await row.allInnerTexts()).join() !== before.join())
    t.equal(await field.inputValue(), 'typed', `at ${y}`)
  }
  for (const name of ['NAME_0', 'NAME_1055', 'a']) {
    await button(page, 'Add a name…').click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name', { exact: true }).fill(name)
    await dialog.getByLabel('Value', { exact: true }).fill('x')
    await button(dialog, 'Save value').click()
    await dialog.waitFor({ state: 'detached' })
    await until(async () => await page.getByRole('grid').getAttribute('aria-rowcount') === String(names.length + 6 + ['NAME_0', 'NAME_1055', 'a'].indexOf(name)))
    t.equal(await field.inputValue(), 'typed', `beside ${name}`)
  }
})

t.test('the history of a name shows no value before an addition, also without the version between', { skip }, async (t) => {
  const { url, nimbus, rosa, page } = await visitConsole(t, browser, 1280)
  const level = { project: 'shop' }
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  await nimbus.call('POST', '/nimbus/secrets/store', { ...level, plaintext: 'A=first\n' })
  await nimbus.call('POST', '/nimbus/secrets/delete', level)
  const { body } = await nimbus.call('POST', '/nimbus/secrets/versions', { ...level, level: 'project' })
  t.equal((await nimbus.call('DELETE', `/nimbus/secrets/versions/${body.data[0].id}`, { force: true })).status, 204)
  await nimbus.call('POST', '/nimbus/secrets/store', { ...level, plaintext: 'A=second\n' })
  await nimbus.call('PATCH', '/nimbus/shop/secrets', { set: { A: 'third' } })
  await page.goto(`${url}/console/nimbus/shop/-/level`)
  await signIn(page, rosa)
  await button(page, 'History A').click()
  const changes = page.getByRole('region', { name: 'Changes of A' }).getByRole('listitem')
  for (const [i, shown] of [/second[^]*third/, /second/, /first/].entries()) {
    await button(changes.nth(i), /^Reveal/).click()
    await button(changes.nth(i), /^Hide/).waitFor()
    t.match(await changes.nth(i).innerText(), shown)
  }
  t.notMatch(await changes.nth(1).innerText(), /first/)
})

t.test('a restore of an earlier value of a name keeps its type, or says why it cannot', { skip }, async (t) => {
  const { url, nimbus, rosa, page } = await visitConsole(t, browser, 1280)
  for (const [project, documents, restored] of [
    ['json', ['{"A": 5432}', '{"A": {"b": [1.0, null]}}', '{"A": "5432"}', '{"A": null}', '{"A": 5432}'], [
      [0, '{"A": null}'], [2, '{"A": "5432"}'], [4, '{"A": {"b":[1.0,null]}}'], [6, '{"A": 5432}']
    ]],
    ['yaml', ['A: True # c\n', 'A: 0x1F\n', 'A: x # d\n'], [[0, undefined], [1, 'A: true # d\n']]]
  ] as const) {
    await nimbus.call('POST', '/nimbus/projects', { name: project, secret_format: project })
    for (const plaintext of documents) t.equal((await nimbus.call('POST', '/nimbus/secrets/store', { project, plaintext })).status, 200)
    for (const [at, text] of restored) {
      await page.goto(`${url}/console/nimbus/${project}/-/level`)
      if (project === 'json' && at === 0) await signIn(page, rosa)
      await button(page, 'History A').click()
      // Each restore adds a change above the earlier ones.
      const earlier = button(page.getByRole('region', { name: 'Changes of A' }), /^Restore value/)
      await earlier.nth(at).click()
      if (text === undefined) await page.getByText('JSON spells differently, such as 0x1F').waitFor()
      else {
        const read = async () => (await nimbus.call('GET', `/nimbus/${project}/secrets?decrypt=true`)).body.data.attributes.levels.project.content
        await until(async () => await read() === text)
      }
    }
  }
})

t.test('people with a role in the organization see what the role includes, and no more', { skip }, async (t) => {
  const { service, url, nimbus } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  await nimbus.call('PATCH', '/nimbus/shop/secrets', { set: { A: '1' } })
  for (const [role, entries, tabs, offersChange] of [
    ['administrator', ['Projects', 'People', 'Tokens', 'Workloads', 'Audit'], ['Secrets', 'Project document', 'History', 'Keys', 'Settings'], true],
    ['developer', ['Projects', 'People', 'Audit'], ['Secrets', 'Project document', 'History', 'Keys', 'Settings'], true],
    ['member', ['Projects', 'People', 'Audit'], ['Secrets', 'Project document', 'History', 'Keys'], true],
    ['auditor', ['Projects', 'People', 'Tokens', 'Workloads', 'Audit', 'Usage'], ['Secrets', 'Project document', 'History'], false]
  ] as const) {
    const person = await makePerson(service, { [nimbus.organization]: role })
    const { page } = await openWindow(t, browser, { viewport: { width: 1280, height: 800 } })
    await page.goto(`${url}/console/nimbus/shop/-/level`)
    await signIn(page, person)
    await page.getByRole('heading', { name: 'Shop', level: 1 }).waitFor()
    if (offersChange) await button(page, 'Change A').waitFor()
    else await page.getByText('Your role does not include the values of this level.').waitFor()
    const texts = async (label: string) => (await page.getByRole('navigation', { name: label }).getByRole('link').allInnerTexts()).map((text) => text.trim())
    t.strictSame(await texts('Organization'), entries, role)
    t.strictSame(await texts('Project'), tabs, role)
    t.equal((await summaries(page)).some((text) => /Add a name|Edit the document/.test(text)), offersChange, role)
    await page.goto(`${url}/console/nimbus/shop`)
    if (!offersChange) await page.getByText('Your role does not include the names of this project.').waitFor()
  }
})

t.test('a billing manager and a guest see no project, and no error', { skip }, async (t) => {
  const { service, url, nimbus } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  for (const [role, entries] of [['billing_manager', ['Projects', 'Usage']], ['guest', ['Projects']]] as const) {
    const person = await makePerson(service, { [nimbus.organization]: role })
    const { page } = await openWindow(t, browser, { viewport: { width: 1280, height: 800 } })
    await page.goto(`${url}/console/nimbus`)
    await signIn(page, person)
    await page.getByText('You have no access to a project yet.').waitFor()
    t.equal(await page.getByRole('alert').count(), 0, role)
    const links = await page.getByRole('navigation', { name: 'Organization' }).getByRole('link').allInnerTexts()
    t.strictSame(links.map((text) => text.trim()), entries, role)
    await page.goto(`${url}/console/nimbus/-/audit`)
    await page.getByText('There is no event that your role may see.').waitFor()
    await page.goto(`${url}/console/nimbus/shop`)
    await page.getByText('There is no project shop here, or you have no access to it.').waitFor()
  }
})

t.test('an address that leads nowhere says so before anything else, with a way back', { skip }, async (t) => {
  const { url, nimbus, rosa, page } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  await page.goto(`${url}/console/nimbus`)
  await signIn(page, rosa)
  await page.getByRole('heading', { name: 'Nimbus', level: 1 }).waitFor()
  for (const [path, text, back] of [
    ['/none', 'There is no organization none', 'Your organizations'],
    ['/nimbus/-/none', 'There is no such page.', 'Projects of the organization'],
    ['/nimbus/-/people/more', 'There is no such page.', 'Projects of the organization'],
    ['/nimbus/shop/none', 'There is no such page.', 'Secrets of the project'],
    ['/nimbus/shop/-/none', 'There is no such page.', 'Secrets of the project'],
    ['/nimbus/shop/-/keys/backend', 'There is no such page.', 'Secrets of the project'],
    ['/nimbus/none', 'There is no project none here', 'All projects'],
    ['/nimbus/none/-/history', 'There is no project none here', 'All projects'],
    ['/nimbus/shop/-/level/none', 'There is no level none in Shop', 'Secrets of Shop'],
    ['/nimbus/shop/-/history/none/live', 'There is no level none / live in Shop', 'Secrets of Shop']
  ] as const) {
    await page.goto(`${url}/console${path}`)
    await page.getByRole('alert').getByText(text).waitFor()
    t.equal(await page.getByRole('heading').count(), 1, path)
    await page.locator('main').getByRole('link', { name: back }).click()
    await page.getByRole('heading', { name: 'Not found' }).waitFor({ state: 'detached' })
  }
  await page.goto(`${url}/console/nimbus/none`)
  await page.getByRole('heading', { name: 'Not found' }).waitFor()
  await look(t, page, 'an unknown project')
})

/** The frames that the page renders after a key in the filter until the rows have changed; 100 if they never do. */
const framesOfKey = (page: Page, key: string) => page.evaluate(`new Promise((resolve) => {
  const field = document.querySelector('[name=filter]')
  const rows = () => document.querySelector('tbody').innerText
  const before = rows()
  let frames = 0
  const look = () => ++frames === 100 || rows() !== before ? resolve(frames) : requestAnimationFrame(look)
  field.value += ${JSON.stringify(key)}
  field.dispatchEvent(new InputEvent('input', { bubbles: true }))
  requestAnimationFrame(look)
})`) as Promise<number>

t.test('the matrix: 18 rows at 1,280 × 800, one stop for Tab, arrow keys, and a filter that follows each key', { skip }, async (t) => {
  const { url, nimbus, rosa, page } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  for (const target of ['Backend', 'Website', 'Worker']) {
    await nimbus.call('POST', '/nimbus/shop/targets', { name: target })
    for (const name of ['Test', 'Stage', 'Live', 'Demo']) await nimbus.call('POST', `/nimbus/shop/${target.toLowerCase()}/environments`, { name })
  }
  const long = `LONG_${'x'.repeat(240)}`
  const names = [...Array.from({ length: 199 }, (_, i) => `NAME_${String(i).padStart(3, '0')}`), long]
  await nimbus.call('POST', '/nimbus/secrets/store', { project: 'shop', plaintext: names.map((name) => `${name}=1\n`).join('') })
  await nimbus.call('PATCH', '/nimbus/shop/website/demo/secrets', { set: { NAME_007: '2', DEMO: '1' } })
  for (const [level, value] of [['backend/test', '1'], ['backend/demo', '2'], ['website/test', '2']] as const) {
    await nimbus.call('PATCH', `/nimbus/shop/${level}/secrets`, { set: { LETTERS: value } })
  }
  await page.goto(`${url}/console/nimbus/shop`)
  await signIn(page, rosa)
  await page.getByRole('rowheader', { name: 'NAME_000' }).waitFor()
  const heads = await page.getByRole('columnheader').allInnerTexts()
  t.strictSame(heads.map((text) => text.replace(/\s+/g, ' ').trim()).slice(1, 7), [
    'Project', 'Backend', 'Backend Test', 'Backend Stage', 'Backend Live', 'Backend Demo'
  ], 'names, in the order of their making')
  const inSight = await page.locator('.matrix').evaluate((region: unknown) => {
    const { innerHeight, document } = globalThis as any
    const bottom = Math.min(innerHeight, (region as any).getBoundingClientRect().bottom)
    const top = document.querySelectorAll('.matrix thead')[0].getBoundingClientRect().bottom
    return [...document.querySelectorAll('.matrix tbody tr:not(.gap)')].filter((row: any) => row.getBoundingClientRect().top >= top - 1 && row.getBoundingClientRect().bottom <= bottom + 1).length
  })
  t.ok(inSight >= 18, `${inSight} rows are in sight`)
  t.equal(await page.locator('.matrix [tabindex="0"]').count(), 1, 'one stop for Tab')
  t.equal(await page.evaluate('document.documentElement.scrollWidth'), 1280)

  const letters = await page.getByRole('row', { name: /^LETTERS/ }).locator('td').allInnerTexts()
  t.strictSame(letters.filter((letter) => letter !== ''), ['A', 'B', 'B'], 'letters count from the left')
  const colours = await page.evaluate(`(() => {
    const { color, backgroundColor } = new Proxy({}, { get: (_, name) => (one) => getComputedStyle(one)[name] })
    const plain = [document.body, document.querySelector('.legend')].map(color)
    return [...document.querySelectorAll('.matrix td button')].map((one) => [
      one.parentElement.matches('.missing.environment'),
      [one.parentElement, one].every((part) => backgroundColor(part) === 'rgba(0, 0, 0, 0)') && [one, one.firstChild].every((part) => plain.includes(color(part)))
    ])
  })()`) as [isMissing: boolean, isPlain: boolean][]
  t.ok(colours.some(([isMissing]) => isMissing))
  t.strictSame(colours.filter(([isMissing, isPlain]) => isMissing === isPlain), [], 'only what is missing in an environment has a colour')
  await page.getByLabel(/^Missing in an environment/).check()
  t.notOk(await page.getByText('Backend / Test, Backend / Stage').isVisible())
  await page.getByText('Names are missing in 12 environments').click()
  await page.getByText('Backend / Test, Backend / Stage').waitFor()
  await page.getByLabel(/^All names/).check()

  // The heading is there while the page loads, and nothing moves when the names come.
  let answer = () => {}
  const asked = new Promise<void>((resolve) => { answer = resolve })
  await page.route('**/secrets/matrix?*', async (route) => { await asked; await route.continue() })
  await page.reload()
  const topOf = async (selector: string) => (await page.locator(selector).boundingBox())!.y
  await page.getByRole('status').getByText('Loading…').waitFor()
  const tops = [await topOf('h1'), await topOf('main > .late')]
  t.match(await page.locator('h1').innerText(), 'Secrets of shop')
  answer()
  await page.getByRole('rowheader', { name: 'NAME_000' }).waitFor()
  t.strictSame([await topOf('h1'), await topOf('.toolbar')], tops)

  await page.locator('.matrix [tabindex="0"]').focus()
  const at = () => page.evaluate('document.activeElement.ariaLabel ?? document.activeElement.innerText') as Promise<string>
  for (const [key, label] of [
    ['ArrowRight', 'in Backend'], ['End', 'in Worker / Demo'], ['Control+End', 'NAME_198 in Worker / Demo'], ['Home', 'NAME_198 in Shop'],
    ['Control+Home', 'in Shop'], ['ArrowUp', 'Project'], ['ArrowRight', 'Backend'], ['ArrowDown', 'in Backend'], ['PageDown', 'in Backend'], ['PageUp', 'in Backend']
  ] as const) {
    await page.keyboard.press(key)
    await until(async () => (await at()).endsWith(label))
    t.equal(await page.locator('.matrix [tabindex="0"]').count(), 1, `${key}: one stop for Tab`)
  }
  await page.keyboard.press('Tab')
  t.notOk(await page.evaluate('document.activeElement.closest(".matrix") !== null'), 'Tab leaves the table')

  await page.getByLabel('Only names that contain').fill('name_0')
  for (const key of ['0', '7']) t.equal(await framesOfKey(page, key), 1, `the next frame after ${key} has the rows of the filter`)
  t.match(await page.getByRole('row').nth(1).innerText(), /NAME_007/)
  await button(page, /NAME_007 in Website \/ Demo/).click()
  await page.getByRole('dialog').getByText('overrides the value of the project').waitFor()
  t.strictSame(await accessibilityProblems(page), [])
})

t.test('a level of 10,000 names scrolls, filters, and shows long names and values on request, by keyboard too', { skip }, async (t) => {
  const { url, nimbus, rosa, page } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  const pem = `-----BEGIN KEY-----\n${'a'.repeat(60)}\n-----END KEY-----\n`
  const names = Array.from({ length: 9_998 }, (_, i) => `NAME_${String(i).padStart(4, '0')}`)
  const long = `A_${'x'.repeat(200)}`
  const text = [...names.map((name) => `${name}=1\n`), `${long}=${'y'.repeat(3000)}\n`, `A_PEM="${pem.replaceAll('\n', '\\n')}"\n`].join('')
  t.equal((await nimbus.call('POST', '/nimbus/secrets/store', { project: 'shop', plaintext: text })).status, 200)
  await page.goto(`${url}/console/nimbus/shop/-/level`)
  await signIn(page, rosa)
  await page.getByRole('rowheader', { name: 'A_PEM' }).waitFor()
  t.ok(await page.locator('.names tbody tr').count() < 60, 'only rows in sight are in the page')
  t.equal(await page.locator('.names [tabindex="0"]').count(), 1, 'one stop for Tab')
  t.equal(await page.evaluate('document.documentElement.scrollWidth'), 1280, 'a long name is shortened')
  const height = async (name: string) => (await page.getByRole('row').filter({ has: page.getByRole('rowheader', { name }) }).boundingBox())!.height
  await button(page, `Reveal ${long}`).click()
  await page.getByText('y'.repeat(3000)).waitFor()
  t.equal(await height(long), 36, 'a long value is shortened')
  await button(page, long).click()
  t.ok((await page.locator('.panel .value').boundingBox())!.height > 36, 'and can be opened')
  await button(page, 'Close').click()
  await until(async () => (await page.evaluate('document.activeElement.innerText') as string) === long)

  // By keyboard: from the name to the line above, and to its actions.
  await page.keyboard.press('ArrowUp')
  for (let i = 0; i < 3; i++) await page.keyboard.press('ArrowRight')
  t.equal(await page.evaluate('document.activeElement.title'), 'Change')
  await page.keyboard.press('Enter')
  const field = page.getByLabel('New value')
  await until(async () => await field.inputValue() === pem)
  await until(async () => await page.evaluate('document.activeElement.tagName') === 'TEXTAREA')
  t.ok((await field.boundingBox())!.height > 60, 'the field is as high as its lines')
  await page.locator('.names').evaluate((region: unknown) => (region as { scrollTo (x: number, y: number): void }).scrollTo(0, 10_000_000))
  await page.getByRole('rowheader', { name: 'NAME_9997' }).waitFor()
  t.equal(await field.inputValue(), pem, 'what is open stays')
  await page.keyboard.press('Control+End')
  await page.keyboard.type('more')
  await button(page, 'Save value').click()
  await said(page, 'Saved A_PEM in Shop.')
  t.equal((await nimbus.call('GET', '/nimbus/shop/secrets/values')).body.A_PEM, `${pem}more`)

  await page.getByLabel('Only names that contain').fill('name_')
  for (const key of ['9', '9']) t.equal(await framesOfKey(page, key), 1, `the next frame after ${key} has the rows of the filter`)
  t.ok(await page.locator('.names tbody tr').count() < 60, 'and only those in sight')
  await page.getByLabel('Only names that contain').fill('')
  await confirm(page, 'Reveal all…', 'document.reveal')
  await page.locator('tr.name .value').first().waitFor()
  await look(t, page, 'level of 10,000 names')
})

t.test('the side bar is a menu on a phone, and / opens the search', { skip }, async (t) => {
  const { url, rosa, page } = await visitConsole(t, browser, 390)
  await page.goto(`${url}/console/nimbus`)
  await signIn(page, rosa)
  await page.getByRole('heading', { name: 'Nimbus', level: 1 }).waitFor()
  t.notOk(await page.getByRole('link', { name: 'People' }).isVisible())
  await button(page, 'Menu').click()
  t.strictSame(await accessibilityProblems(page), [])
  await page.getByRole('link', { name: 'People' }).click()
  await page.getByRole('heading', { name: 'People', level: 1 }).waitFor()
  t.notOk(await page.getByRole('link', { name: 'Audit' }).isVisible(), 'the menu closes')
  await button(page, 'Menu').click()
  await page.getByRole('link', { name: 'People' }).click()
  await page.getByRole('link', { name: 'Audit' }).waitFor({ state: 'hidden' })
  await button(page, 'Menu').click()
  await page.getByRole('link', { name: 'Audit' }).focus()
  await page.keyboard.press('Escape')
  t.notOk(await page.getByRole('link', { name: 'Audit' }).isVisible(), 'Escape closes the menu')
  const heights = await page.evaluate(`[...document.querySelectorAll('main button, main select, main input:not([type=checkbox], [type=radio]), .top button')]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().width > 1).map((one) => one.getBoundingClientRect().height).filter((height) => height < 44)`)
  t.strictSame(heights, [], 'controls are 44 pixels high')
  await page.locator('main').focus()
  await page.keyboard.press('/')
  await page.getByRole('dialog', { name: 'Search names' }).waitFor()
})
