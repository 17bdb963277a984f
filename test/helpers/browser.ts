import { existsSync } from 'node:fs'
import axe from 'axe-core'
import { chromium, type Browser, type BrowserContext, type Page } from 'playwright-core'
import type { Person } from './people.ts'

// Chromium for tests.

// The shell is Chromium without windows, which needs a quarter less CPU time.
const PLACES = [
  '/usr/bin/chromium-headless-shell', '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome', '/usr/bin/google-chrome-stable', '/snap/bin/chromium', '/opt/google/chrome/chrome',
  '/Applications/Chromium.app/Contents/MacOS/Chromium', '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'
]
const executablePath = process.env.CHROMIUM ?? PLACES.find((place) => existsSync(place))
/** False, or the reason why tests in a browser are skipped. */
export const skip = executablePath === undefined ? 'no Chromium is installed; CHROMIUM may name one' : false

// Playwright turns these features off, too, but Chromium reads only the last list.
const OFF_IN_PLAYWRIGHT = [
  'AvoidUnnecessaryBeforeUnloadCheckSync', 'DestroyProfileOnBrowserClose', 'HttpsUpgrades',
  'HttpsFirstBalancedModeAutoEnable', 'LensOverlay', 'MediaRouter', 'PaintHolding', 'ThirdPartyStoragePartitioning',
  'AvoidCorsURLLoaderRestartOnRedirect', 'OptimizationHints', 'NetworkTimeServiceQuerying', 'AimEnabled',
  'PreconnectToSearch'
]
// The pages below the address bar of each window, and a spare process for each page: half of the CPU time of a window.
const UNUSED = ['WebUIOmniboxPopup', 'WebUIOmniboxAimPopup', 'SpareRendererForSitePerProcess']

const ARGUMENTS = [
  // Resolves only host names of this machine, so that no test depends on other hosts.
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost',
  `--disable-features=${[...OFF_IN_PLAYWRIGHT, ...UNUSED].join()}`
]

export async function launch (): Promise<Browser> {
  const chromiumSandbox = process.getuid?.() !== 0
  return chromium.launch({ executablePath: executablePath!, chromiumSandbox, args: ARGUMENTS })
}

export interface Window {
  context: BrowserContext
  page: Page
  /** Violations of content security policies and errors of scripts, in all pages of the window. */
  wrongs: string[]
  /** All requested addresses. */
  requested: string[]
}

/** A window of a browser without cookies and storage. */
export async function openWindow (
  t: { teardown (fn: () => unknown): void }, browser: Browser, options: Parameters<Browser['newContext']>[0] = {}
): Promise<Window> {
  const context = await browser.newContext(options)
  context.setDefaultTimeout(60_000)
  t.teardown(async () => context.close())
  const [wrongs, requested]: [string[], string[]] = [[], []]
  context.on('request', (request) => requested.push(request.url()))
  context.on('console', (message) => {
    if (/content security policy/i.test(message.text())) wrongs.push(message.text())
  })
  context.on('weberror', (error) => wrongs.push(error.error().message))
  await context.exposeBinding('tellViolation', (_source, text: string) => { wrongs.push(text) })
  await context.addInitScript(
    "document.addEventListener('securitypolicyviolation', (event) => tellViolation(event.effectiveDirective + ' refused ' + event.blockedURI))"
  )
  return { context, page: await context.newPage(), wrongs, requested }
}

export async function signIn (page: Page, { email, password }: Pick<Person, 'email' | 'password'>) {
  await page.getByLabel('E-mail address').fill(email)
  await page.getByLabel('Password').fill(password)
  await page.getByRole('button', { name: 'Sign in' }).click()
}

const AXE = `${axe.source}; undefined`
const RUN_AXE = `axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => id + ': ' + nodes.slice(0, 3).map(({ html, failureSummary }) => html.slice(0, 160) + ' ' + failureSummary).join(' | ')))`

/** Violations of the rules of WCAG 2.2 A and AA, and of best practices, on the present page. */
export async function accessibilityProblems (page: Page): Promise<string[]> {
  if (await page.evaluate('typeof axe') === 'undefined') await page.evaluate(AXE)
  return page.evaluate(RUN_AXE)
}
