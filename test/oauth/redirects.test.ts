// runs: no database
import t from 'tap'
import { destinationOf, formTarget, isRegistrable, redirectMatches } from '../../src/rules/redirects.ts'

const ISSUER = 'https://secrets.example.com'
const WEB = 'https://client.example.com/cb'

/** Addresses that resemble the registered address, but differ from it. */
const OTHERS = [
  'https://client.example.com/cb/',
  'https://client.example.com/cb?',
  'https://client.example.com/cb?x',
  'https://client.example.com/cb?x=1',
  'https://client.example.com/%63b',
  'https://client.example.com/cb%20',
  'https://client.example.com/cb%00',
  'https://client.example.com//cb',
  'https://client.example.com/cb;a',
  'https://client.example.com/CB',
  'https://client.example.com/cbx',
  'https://client.example.com/c',
  'https://client.example.com/',
  'https://client.example.com./cb',
  'https://client.example.com.evil.example/cb',
  'https://evil.example/https://client.example.com/cb',
  'https://evil.example/cb?https://client.example.com/cb',
  '/cb',
  'https://xn--clent-3ve.example.com/cb'
]

/** Spellings that a parser interprets as another address. No client may register them. */
const MISSPELT = [
  'https://client.example.com:443/cb',
  'https://CLIENT.example.com/cb',
  'https://Client.Example.Com/cb',
  'HTTPS://client.example.com/cb',
  'https://client.example.com/cb#',
  'https://client.example.com/cb#f',
  'https://client.example.com/cb/../cb',
  'https://client.example.com/./cb',
  'https://client.example.com',
  'https://client.example.com@evil.example/cb',
  'https://client.example.com%2eevil.example/cb',
  'https://evil.example#https://client.example.com/cb',
  'https://user@client.example.com/cb',
  'https://user:password@client.example.com/cb',
  'https://evil.example\\@client.example.com/cb',
  'https://client.example.com\\.evil.example/cb',
  'https:\\\\client.example.com\\cb',
  'https:/client.example.com/cb',
  'https:client.example.com/cb',
  '//client.example.com/cb',
  'cb',
  'http://client.example.com/cb',
  'https://client.example.com/c\tb',
  'https://client.example.com/c\nb',
  'https://client.example.com/cb\r\nLocation: https://evil.example/',
  ' https://client.example.com/cb',
  'https://client.example.com/cb ',
  'https://client.example.com/cb\0',
  'https://clіent.example.com/cb',
  `https://client.example.com/cb${'x'.repeat(8192)}`
]

t.test('OA-07: a redirect address is compared byte by byte, with no normalisation', async (t) => {
  t.ok(redirectMatches(WEB, WEB, ISSUER))
  for (const sent of [...OTHERS, ...MISSPELT]) {
    t.notOk(redirectMatches(WEB, sent, ISSUER), JSON.stringify(sent.slice(0, 80)))
  }
  const withQuery = 'https://client.example.com/cb?tenant=1'
  t.ok(redirectMatches(withQuery, withQuery, ISSUER))
  for (const sent of [
    WEB, `${withQuery}&x=1`, 'https://client.example.com/cb?tenant=2', 'https://client.example.com/cb?Tenant=1'
  ]) {
    t.notOk(redirectMatches(withQuery, sent, ISSUER), sent)
  }
  const app = 'com.example.app:/cb'
  t.ok(redirectMatches(app, app, ISSUER))
  for (const sent of [
    'com.example.app://cb', 'com.example.app:/cb/', 'COM.example.app:/cb', 'com.example.app2:/cb',
    'com.example.app:/cb?x', 'com.example.app:cb'
  ]) {
    t.notOk(redirectMatches(app, sent, ISSUER), sent)
  }
})

const LOOPBACKS = ['http://127.0.0.1', 'http://[::1]', 'http://localhost']

t.test('OA-08: only the port of a loopback address may be another', async (t) => {
  for (const [i, host] of LOOPBACKS.entries()) {
    for (const registered of [`${host}/callback`, `${host}:8080/callback`]) {
      for (const port of ['', ':1', ':80', ':443', ':5555', ':51004', ':65535']) {
        t.ok(redirectMatches(registered, `${host}${port}/callback`, ISSUER), `${registered} ${port}`)
      }
      for (const port of [
        ':', ':0', ':00', ':080', ':65536', ':99999', ':100000', ':+1', ':-1', ':1e3', ':0x50', ':80:80', ':８０'
      ]) {
        t.notOk(redirectMatches(registered, `${host}${port}/callback`, ISSUER), `${registered} ${port}`)
      }
      for (const other of LOOPBACKS.filter((_, j) => j !== i)) {
        t.notOk(redirectMatches(registered, `${other}:5555/callback`, ISSUER), `${registered} ${other}`)
      }
      for (const rest of [
        '', '/', '/callback/', '/Callback', '/callback?bar=foo', '/callback?', '/callback#f', '/callback/../callback',
        '/%63allback', '//callback', '/callback;a', '\\callback', '/callback\n', '/callback '
      ]) {
        t.notOk(redirectMatches(registered, `${host}:5555${rest}`, ISSUER), `${registered} ${JSON.stringify(rest)}`)
      }
    }
  }
  const spellings = [
    'http://127.1:5555/callback', 'http://127.000.000.001:5555/callback', 'http://0x7f000001:5555/callback', 'http://2130706433:5555/callback',
    'http://0177.0.0.1:5555/callback', 'http://127.0.0.2:5555/callback', 'http://0.0.0.0:5555/callback', 'http://LOCALHOST:5555/callback', 'http://Localhost:5555/callback',
    'http://localhost.:5555/callback', 'http://localhost.evil.example:5555/callback', 'http://localhost:80@evil.example/callback', 'http://localhost@evil.example/callback',
    'http://127.0.0.1:80@evil.example/callback', 'http://127.0.0.1.evil.example/callback', 'http://evil.example#@localhost/callback', 'http://evil.example\\@localhost/callback',
    'http://user@localhost:5555/callback', 'http://[::01]:5555/callback', 'http://[0:0:0:0:0:0:0:1]:5555/callback', 'http://[::ffff:127.0.0.1]:5555/callback', 'http://::1:5555/callback',
    'https://localhost:5555/callback', 'https://127.0.0.1:5555/callback', 'HTTP://localhost:5555/callback', 'http:localhost:5555/callback', 'http:/localhost:5555/callback',
    'http://loc\talhost:5555/callback', 'http://ｌocalhost:5555/callback', 'http://127。0。0。1:5555/callback'
  ]
  for (const host of LOOPBACKS) {
    for (const sent of spellings) t.notOk(redirectMatches(`${host}/callback`, sent, ISSUER), `${host} ${sent}`)
  }
  // A client with only https addresses cannot use loopback addresses or other ports.
  for (const host of LOOPBACKS) t.notOk(redirectMatches(WEB, `${host}:5555/cb`, ISSUER))
  t.notOk(redirectMatches(WEB, 'https://client.example.com:8443/cb', ISSUER))
  t.notOk(redirectMatches('https://localhost/cb', 'https://localhost:5555/cb', ISSUER))
  t.ok(redirectMatches('http://127.0.0.1/callback?a=1', 'http://127.0.0.1:5555/callback?a=1', ISSUER))
  t.notOk(redirectMatches('http://127.0.0.1/callback?a=1', 'http://127.0.0.1:5555/callback', ISSUER))
})

const REGISTRABLE = [
  WEB, 'https://client.example.com/', 'https://client.example.com:8443/cb', 'https://client.example.com/cb?tenant=1', 'https://xn--bcher-kva.example/cb', 'https://[2001:db8::1]/cb',
  'http://localhost/callback', 'http://127.0.0.1/callback', 'http://[::1]/callback', 'http://localhost:43893/callback', 'http://127.0.0.1:1/', 'http://127.0.0.1/callback?a=1',
  'com.example.app:/cb', 'com.example.app://cb', 'com.example-app.v2:/oauth/cb?x=1', '/docs/static/oauth2-redirect.html'
]
const SCHEMES = [
  'javascript', 'data', 'vbscript', 'file', 'blob', 'about', 'ftp', 'ws', 'wss', 'mailto', 'tel', 'intent', 'chrome',
  'view-source', 'jar', 'filesystem', 'myapp', 'dotenv', 'urn', 'http', 'x'
]
const UNREGISTRABLE = [
  ...SCHEMES.flatMap((scheme) => [
    ':/cb', '://cb', '://client.example.com/cb', ':alert(1)', ':', ':text/html,<script>alert(1)</script>'
  ].map((rest) => scheme + rest)),
  'JavaScript:alert(1)', 'java\tscript:alert(1)', ' javascript:alert(1)', 'javascript://client.example.com/%0aalert(1)', 'com.example.app:cb', 'com.example.app:', '.example:/cb', 'com.:/cb',
  'COM.EXAMPLE.app:/cb', '1com.example:/cb', 'com.example.app:/cb#a', 'com.example.app:/a/../cb', 'com.example.app:/<script>', 'com.example.app://[/cb',
  'http://client.example.com/cb', 'http://10.0.0.1/cb', 'http://192.168.0.1/cb', 'http://localhost.evil.example/cb', 'http://127.0.0.2/cb', 'http://127.1/cb', 'http://0.0.0.0/cb', 'http://LOCALHOST/cb',
  'http://localhost', 'http://localhost:/cb', 'http://localhost:0/cb', 'http://localhost:65536/cb', 'http://localhost/a/../cb', 'http://localhost/%2e%2e/cb', 'http://localhost/cb#a', 'http://user@localhost/cb',
  'http://localhost:80@evil.example/cb', 'http://localhost/cb\n', 'http://localhost/ü',
  ...MISSPELT,
  '', '//evil.example/cb', '/a//b', '/a/../b', '/./a', '/a?b', '/a#b', '\\evil', '/a b', '/a%2f',
  'https://', 'https:///cb', 'https://?', 'https://client.example.com:99999/cb', 'https://client.example.com:0443/cb', 'https://a;script-src.example/cb', 'https://a,b.example/cb', "https://a'b.example/cb", 'https://256.1.1.1/cb'
]

t.test('OA-09: nothing but https, loopback and private-use schemes in reverse domain form can be registered', async (t) => {
  for (const uri of REGISTRABLE) t.ok(isRegistrable(uri), uri)
  for (const uri of UNREGISTRABLE) t.notOk(isRegistrable(uri), JSON.stringify(uri.slice(0, 80)))
})

t.test('OA-09: what cannot be registered does not match either, even where it stands in the database', async (t) => {
  for (const uri of REGISTRABLE.filter((one) => !one.startsWith('/'))) t.ok(redirectMatches(uri, uri, ISSUER), uri)
  for (const uri of UNREGISTRABLE.filter((one) => !one.startsWith('/'))) {
    t.notOk(redirectMatches(uri, uri, ISSUER), JSON.stringify(uri.slice(0, 80)))
  }
})

t.test('OA-09: of random addresses only https, loopback http and schemes with a dot can be registered', async (t) => {
  const pieces = [
    'http', 'https', 'javascript', 'data', 'com.example', 'a', '.', ':', '/', '//', '\\', '@', 'localhost', '127.0.0.1',
    '[::1]', 'evil.example', '?', '#', '%2f', '*', '\t', '\n', ' ', '0', ':80', 'cb', 'İ', '\u202e', ';'
  ]
  let random = 42
  const next = (n: number) => (random = (random * 1103515245 + 12345) % 2147483648) % n
  let accepted = 0
  for (let i = 0; i < 50_000; i++) {
    const uri = Array.from({ length: 1 + next(7) }, () => pieces[next(pieces.length)]).join('')
    if (!isRegistrable(uri)) continue
    accepted++
    if (uri.startsWith('/')) continue
    const { protocol, hostname, hash, username, href } = new URL(uri)
    const sound = protocol === 'https:' ||
      (protocol === 'http:' && ['localhost', '127.0.0.1', '[::1]'].includes(hostname)) ||
      /^[a-z][a-z0-9+-]*\.[a-z0-9.+-]+:$/.test(protocol)
    if (!sound || hash !== '' || username !== '' || /[*#\s\\]|[^\x20-\x7e]/.test(uri) ||
      (protocol !== 'http:' && href !== uri)) {
      t.fail(JSON.stringify(uri))
    }
  }
  t.ok(accepted > 50, `${accepted} were accepted`)
})

t.test('OA-10: no wildcard, no prefix, no fragment can be registered', async (t) => {
  const wild = [
    'https://*.example.com/cb', 'https://*/cb', 'https://x/*', 'https://client.example.com/*', 'https://client.example.com/cb*', 'https://client.example.com/cb?*', 'https://client.example.com:*/cb',
    'http://localhost:*/callback', 'http://localhost/*', 'http://127.0.0.1/callback*', 'http://*/callback', 'com.example.app:/*', 'com.example.*:/cb', '/docs/*', '*',
    'https://x/cb#a', 'https://x/cb#', 'http://localhost/callback#a', 'com.example.app:/cb#a', '/docs#a'
  ]
  for (const uri of wild) t.notOk(isRegistrable(uri), uri)
  for (const registered of wild) {
    for (const sent of [
      registered, WEB, 'https://a.example.com/cb', 'https://x/cb', 'http://localhost:5555/callback',
      'com.example.app:/cb', 'https://x/cb#a'
    ]) {
      t.notOk(redirectMatches(registered, sent, ISSUER), `${registered} ${sent}`)
    }
  }
  // A registered address is not a prefix for other addresses.
  t.notOk(redirectMatches('https://client.example.com/', WEB, ISSUER))
})

t.test('OA-07: a path of this service is registered for the service itself, wherever it is, and for no other', async (t) => {
  const path = '/docs/static/oauth2-redirect.html'
  t.ok(redirectMatches(path, `${ISSUER}${path}`, ISSUER))
  t.ok(redirectMatches(path, `https://example.com/base${path}`, 'https://example.com/base'))
  for (const sent of [
    path, `https://example.com${path}`, `${ISSUER}${path}?x`, `${ISSUER}:443${path}`,
    `http://secrets.example.com${path}`, `https://evil.example/${ISSUER}${path}`, `http://localhost:8080${path}`
  ]) {
    t.notOk(redirectMatches(path, sent, ISSUER), sent)
  }
  for (const issuer of ['http://127.0.0.1:8080', 'http://localhost:8080']) {
    for (const host of ['127.0.0.1', 'localhost']) {
      t.ok(redirectMatches(path, `http://${host}:8080${path}`, issuer), `${issuer} ${host}`)
    }
    for (const sent of [
      `http://127.0.0.1:8081${path}`, `http://localhost.evil.example:8080${path}`,
      `http://localhost:8080@evil.example${path}`, `https://localhost:8080${path}`, `http://127.0.0.2:8080${path}`
    ]) {
      t.notOk(redirectMatches(path, sent, issuer), sent)
    }
  }
})

t.test('CR-45: what a form may lead on to is one origin or one scheme, in the grammar of the policy', async (t) => {
  t.equal(formTarget('https://client.example.com:8443/cb?x=1'), 'https://client.example.com:8443')
  t.equal(formTarget('http://127.0.0.1:5555/callback'), 'http://127.0.0.1:5555')
  t.equal(formTarget('http://[::1]:5555/callback'), 'http://*:5555')
  t.equal(formTarget('com.example.app:/cb'), 'com.example.app:')
  t.equal(formTarget('com.example.app://host/cb'), 'com.example.app:')
  for (const uri of REGISTRABLE.filter((one) => !one.startsWith('/'))) {
    t.match(formTarget(uri), /^[a-z0-9+.:/*-]+$/, uri)
  }
})

t.test('OA-16: where a redirect leads is named by its host, or by its scheme when that is what decides', async (t) => {
  t.equal(destinationOf('https://client.example.com:8443/cb'), 'client.example.com:8443')
  t.equal(destinationOf('com.example.app:/cb'), 'the app behind com.example.app:')
  t.equal(destinationOf('com.example.app://bank.example/cb'), 'the app behind com.example.app:')
})
