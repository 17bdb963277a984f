import type { Browser, Locator, Page } from 'playwright-core'
import root, { type Test } from 'tap'
import { startIsolatedApp, type Caller, type TestApp } from './app.ts'
import { accessibilityProblems, openWindow } from './browser.ts'
import { operationsOfConsole } from './console.ts'
import { byTurns, LONG } from './long.ts'
import { makePerson, type Person } from './people.ts'
import { patiently } from './traffic.ts'
import { until } from './until.ts'

// The console in a window of Chromium.

/** Operations by the pattern of their requests. */
const PATTERNS = [...operationsOfConsole()].map(([operation, text]) => {
  const [method = '', path = ''] = text.split(' ')
  const pattern = new RegExp(`^${path.replace(/\{\w+\}/g, '[^/]+')}$`)
  return { operation, method, pattern, parameters: path.split('{').length }
}).sort((a, b) => a.parameters - b.parameters)

const operationOf = (method: string, pathname: string): string | undefined =>
  PATTERNS.find((one) => one.method === method && one.pattern.test(pathname))?.operation

export interface Visit {
  service: TestApp
  url: string
  nimbus: Caller
  rosa: Person
  page: Page
  /** The clicked actions and the called operations. */
  actions: Set<string>
  operations: Set<string>
  wrongs: string[]
  requested: string[]
}

const services = new WeakMap<Browser, Promise<{ service: TestApp, url: string }>>()

async function start (t: { teardown (fn: () => unknown): void }, env: Record<string, string> = {}) {
  const service = await startIsolatedApp(t, env)
  return { service, url: await service.app.listen({ host: '127.0.0.1', port: 0 }) }
}

/**
 * A service with an organization `nimbus`, and a window of an owner of it. The tests of a file share a service, on a
 * database of its own because of the fixed slug: the organization of the test before gets another slug.
 */
export async function visitConsole (
  t: Test, browser: Browser, width: number, env?: Record<string, string>
): Promise<Visit> {
  if (env === undefined && !services.has(browser)) services.set(browser, start(root))
  const { service, url } = await (env === undefined ? services.get(browser)! : start(t, env))
  await service.sql("UPDATE organizations SET slug = 'left-' || lower(id) WHERE slug = 'nimbus'")
  const caller = await service.organization({ slug: 'nimbus' })
  const nimbus: Caller = { ...caller, call: (...request) => patiently(() => caller.call(...request)) }
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
  const window = await openWindow(t, browser, {
    viewport: { width, height: 800 }, permissions: ['clipboard-read', 'clipboard-write'], bypassCSP: false, locale: 'en-GB'
  })
  const [actions, operations] = [new Set<string>(), new Set<string>()]
  await window.context.exposeBinding('recordAction', (_source, name: string) => { actions.add(name) })
  await window.context.addInitScript(`document.addEventListener('click', (event) => {
    const action = event.target.closest?.('[data-action]')?.dataset.action
    if (action !== undefined) recordAction(action)
  }, true)`)
  window.context.on('request', (request) => {
    const { pathname } = new URL(request.url())
    const operation = operationOf(request.method(), pathname)
    if (operation !== undefined) operations.add(operation)
  })
  return { service, url, nimbus, rosa, ...window, actions, operations }
}

export const SIZES = [1280, 360] as const

const LOOKS = [[360, 'light'], [360, 'dark'], [1280, 'dark'], [1280, 'light']] as const
let looks = 0

/**
 * Asserts that the page is as wide as the window at 360 and 1,280 pixels, one in light and one in dark, and that it is
 * accessible in one of them, by turns; in the proofs, both in both.
 */
export async function look (t: Test, page: Page, what: string) {
  const size = page.viewportSize()!
  const turn = looks++
  for (const [i, [width, colorScheme]] of byTurns(LOOKS, turn, 2).entries()) {
    await page.setViewportSize({ width, height: 800 })
    await page.emulateMedia({ colorScheme })
    const where = `${what}, ${width} pixels, ${colorScheme}`
    if (LONG || i === (turn >> 1) % 2) t.strictSame(await accessibilityProblems(page), [], `${where}: axe`)
    t.equal(await page.evaluate('document.documentElement.scrollWidth'), width, `${where}: nothing is wider`)
  }
  await page.emulateMedia({ colorScheme: 'light' })
  await page.setViewportSize(size)
}

const VISIBLE = "[...document.querySelectorAll('main *, .tabs a, .top button')].filter((one) => one.checkVisibility() && one.getBoundingClientRect().width > 1)"
const CONTENT = `${VISIBLE}.find((one) => one.matches('main :not(.head, .head *)') && (one.matches('button, input, select, textarea') ||
  [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== ''))).getBoundingClientRect().top + scrollY`
const HEIGHTS = `${VISIBLE}.filter((one) => one.matches('button, select, summary, .tabs a, input:not([type=checkbox], [type=radio], [type=file])'))
  .map((one) => Math.round(one.getBoundingClientRect().height) + ' ' + one.outerHTML.slice(0, 120))`

/** Asserts that the content begins within 120 pixels, and that controls are 32 pixels high, on a phone 44. */
export async function isCompact (t: Test, page: Page, what: string) {
  const { width } = page.viewportSize()!
  const where = `${what}, ${width} pixels`
  const height = width > 1000 ? '32 ' : '44 '
  const others = async () => (await page.evaluate(HEIGHTS) as string[]).filter((one) => !one.startsWith(height))
  // A list draws itself for the new width after the event of the window.
  await until(async () => (await others()).length === 0).catch(() => {})
  t.strictSame(await others(), [], `${where}: controls`)
  const content = await page.evaluate(CONTENT) as number
  t.ok(content <= 120, `${where}: the content begins at ${content} pixels`)
}

export const button = (at: Page | Locator, name: string | RegExp) => at.getByRole('button', { name, ...(typeof name === 'string' && { exact: true }) })
export const said = (page: Page, text: string | RegExp) => page.getByRole('status').getByText(text).first().waitFor()
const IN_SIDE_BAR = ['Strongroom', 'Projects', 'People', 'Tokens', 'Workloads', 'Audit', 'Usage']
/** Shows the side bar, which is a menu on a phone. */
export async function openMenu (page: Page) {
  const menu = button(page, 'Menu')
  if (await menu.isVisible() && await menu.getAttribute('aria-expanded') === 'false') await menu.click()
}
export async function follow (page: Page, name: string) {
  if (IN_SIDE_BAR.includes(name)) await openMenu(page)
  await page.getByRole('link', { name, exact: true }).first().click()
}
/** The button of a name at a level in the matrix; on a phone, the page shows one level. */
export async function cell (page: Page, name: string, level: string): Promise<Locator> {
  const levels = page.getByLabel('Level', { exact: true })
  await page.getByRole('region', { name: 'Names and levels' }).waitFor()
  if (await levels.isVisible()) await levels.selectOption({ label: level })
  return button(page, new RegExp(` ${name} in ${level}$`))
}
export async function unfold (page: Page, text: string | RegExp) {
  const summary = page.locator('summary', { hasText: text }).first()
  await summary.waitFor()
  if (await summary.locator('..').getAttribute('open') === null) await summary.click()
}

/** Confirms an action in its dialog. */
export async function confirm (page: Page, opener: string | RegExp, action: string) {
  await button(page, opener).first().click()
  await page.getByRole('dialog').locator(`button[data-action="${action}"]`).click()
}
