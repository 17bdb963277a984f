// runs: no database
import t from 'tap'
import { networkOf } from '../../src/http/routes/addresses.ts'
import { describeUserAgent } from '../../src/rules/formats/user-agents.ts'

const WEBKIT = 'AppleWebKit/537.36 (KHTML, like Gecko)'
const MAC = 'Macintosh; Intel Mac OS X 10_15_7'
const AGENTS: [browser: string | null, system: string | null, header: string][] = [
  ['Firefox', 'Linux', 'Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0'],
  ['Firefox', 'Windows', 'Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:128.0) Gecko/20100101 Firefox/128.0'],
  ['Firefox', 'Android', 'Mozilla/5.0 (Android 14; Mobile; rv:128.0) Gecko/128.0 Firefox/128.0'],
  ['Firefox', 'iOS', 'Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) FxiOS/127.0 Mobile/15E148 Safari/605.1.15'],
  ['Chrome', 'macOS', `Mozilla/5.0 (${MAC}) ${WEBKIT} Chrome/126.0.0.0 Safari/537.36`],
  ['Chrome', 'Android', `Mozilla/5.0 (Linux; Android 10; K) ${WEBKIT} Chrome/126.0.0.0 Mobile Safari/537.36`],
  ['Chrome', 'ChromeOS', `Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) ${WEBKIT} Chrome/126.0.0.0 Safari/537.36`],
  ['Chrome', 'Linux', `Mozilla/5.0 (X11; Linux x86_64) ${WEBKIT} HeadlessChrome/126.0.0.0 Safari/537.36`],
  ['Chrome', 'iOS', 'Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) CriOS/126.0.0.0 Mobile/15E148 Safari/604.1'],
  ['Safari', 'macOS', `Mozilla/5.0 (${MAC}) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Safari/605.1.15`],
  ['Safari', 'iOS', 'Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Mobile/15E148 Safari/604.1'],
  ['Safari', 'iPadOS', 'Mozilla/5.0 (iPad; CPU OS 16_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/16.6 Mobile/15E148 Safari/604.1'],
  ['Edge', 'Windows', `Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${WEBKIT} Chrome/126.0.0.0 Safari/537.36 Edg/126.0.0.0`],
  ['Opera', 'Windows', `Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${WEBKIT} Chrome/125.0.0.0 Safari/537.36 OPR/111.0.0.0`],
  ['Samsung Internet', 'Android', `Mozilla/5.0 (Linux; Android 13; SAMSUNG SM-S918B) ${WEBKIT} SamsungBrowser/25.0 Chrome/121.0.0.0 Mobile Safari/537.36`],
  ['curl', null, 'curl/8.5.0'],
  [null, 'Linux', 'Something/1.0 (Linux)'],
  [null, null, '<script>alert(1)</script>'],
  [null, null, '']
]

t.test('a User-Agent header gives the name of a known browser and system, and never a part of the header', async (t) => {
  for (const [browser, system, header] of AGENTS) t.strictSame(describeUserAgent(header), { browser, system }, header)
  t.strictSame(describeUserAgent(undefined), { browser: null, system: null })
  const found = (length: number) => describeUserAgent(`${' '.repeat(length)}Firefox/128.0`).browser
  t.strictSame([found(500), found(512)], ['Firefox', null], 'only the first 512 characters are searched')
})

t.test('a network is the /24 of an IPv4 address and the /48 of an IPv6 address', async (t) => {
  for (const [address, network] of [
    ['192.0.2.77', '192.0.2.0/24'], ['::ffff:192.0.2.77', '192.0.2.0/24'], ['2001:db8:12:34::1', '2001:db8:12::/48'],
    ['2001:DB8:0012:0:0:0:0:1', '2001:db8:12::/48'], ['::1', '0:0:0::/48'], ['fe80::1%eth0', 'fe80:0:0::/48'],
    ['unknown', undefined], ['', undefined]
  ] as const) t.equal(networkOf(address), network, address)
  t.equal(networkOf(undefined), undefined)
})
