/** Names of a browser and its operating system for display; null if unknown. */
export interface UserAgent { browser: string | null, system: string | null }

// The order matters: the headers of many browsers also contain the names `Chrome` and `Safari`.
const BROWSERS: readonly (readonly [name: string, pattern: RegExp])[] = [
  ['Edge', /\b(?:Edg|EdgA|EdgiOS|Edge)\//],
  ['Opera', /\b(?:OPR|OPT|Opera)\//],
  ['Samsung Internet', /\bSamsungBrowser\//],
  ['Vivaldi', /\bVivaldi\//],
  ['DuckDuckGo', /\b(?:DuckDuckGo|Ddg)\//],
  ['Firefox', /\b(?:Firefox|FxiOS)\//],
  ['Chrome', /(?:\b|Headless)(?:Chrome|Chromium|CriOS)\//],
  ['Safari', /\bVersion\/\S+ .*\bSafari\//],
  ['curl', /^curl\//]
]

const SYSTEMS: readonly (readonly [name: string, pattern: RegExp])[] = [
  ['iPadOS', /\biPad\b/],
  ['iOS', /\b(?:iPhone|iPod)\b/],
  ['Android', /\bAndroid\b/],
  ['Windows', /\bWindows\b/],
  ['ChromeOS', /\bCrOS\b/],
  ['macOS', /\b(?:Macintosh|Mac OS X)\b/],
  ['Linux', /\b(?:Linux|X11)\b/]
]

// Maximum characters to search: longer than the header of every common browser.
const MAX_LENGTH = 512

/** Names the browser and the system of a `User-Agent` header. Returns only names of the lists above. */
export function describeUserAgent (header: string | undefined): UserAgent {
  const text = (header ?? '').slice(0, MAX_LENGTH)
  const nameIn = (list: typeof BROWSERS) => list.find(([, pattern]) => pattern.test(text))?.[0] ?? null
  return { browser: nameIn(BROWSERS), system: nameIn(SYSTEMS) }
}
