// runs: no database
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { mock } from 'node:test'
import { brotliCompressSync } from 'node:zlib'
import { Vault } from 'lucide'
import t from 'tap'
import { parse } from 'yaml'
import { CHANGE_LIMITS } from '../../schemas/changes.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { LOGO, STYLE } from '../../src/http/pages/style.ts'
import { documentError, readDocument } from '../../src/rules/documents/read.ts'
import { changeNames } from '../../src/rules/editing/change.ts'
import { load, operationsOfConsole } from '../helpers/console.ts'
import { operationsIn } from '../helpers/contract.ts'
import { texts } from '../helpers/texts.ts'
import { VALUES } from '../readers/values.ts'

// Tests the parts of the console that need no browser, and the size budgets.

// Browser functions that the modules need.
const timers = { setTimeout: (run: () => void, ms: number) => setTimeout(run, ms) }
Object.assign(globalThis, { window: Object.assign(new EventTarget(), timers) })

/** The module of values, with a change of one name. */
async function loadValues () {
  const values = await load('values.ts')
  const changeValue = (format: string, text: string, name: string, value: string | undefined): string =>
    values.changeValues(format, text, value === undefined ? { unset: [name] } : { set: { [name]: value } })
  return { ...values, changeValue }
}

const files = readdirSync('console', { recursive: true }).map(String).filter((name) => statSync(join('console', name)).isFile())
const sources = files.filter((name) => /\.tsx?$/.test(name))

t.test('the console has at most 5,500 lines, a file for each page, and 80 KB', async (t) => {
  const lines = files.reduce((sum, name) => sum + readFileSync(join('console', name), 'utf8').split('\n').length - 1, 0)
  t.ok(lines <= 5500, `${lines} lines`)
  const { PAGES } = await load('router.ts')
  t.strictSame(files.filter((name) => name.startsWith('pages/')).sort(), Object.keys(PAGES).map((page) => `pages/${page}.tsx`).sort())
  const built = readdirSync('dist/console').filter((name) => /\.(?:js|css|html)$/.test(name))
  const bytes = built.reduce((sum, name) => sum + brotliCompressSync(readFileSync(join('dist/console', name))).length, 0)
  t.ok(bytes <= 80 * 1024, `${bytes} bytes`)
  const images = readdirSync('docs/images').reduce((sum, name) => sum + statSync(join('docs/images', name)).size, 0)
  t.ok(images > 0 && images <= 600 * 1024, `${images} bytes of images`)
})

t.test('a key is forgotten after 15 minutes without use', async (t) => {
  const { holdKey, isOpen, heldKey } = await load('held-keys.ts')
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const minutes = (count: number) => mock.timers.tick(count * 60_000)
  holdKey('nimbus/shop', {})
  minutes(14)
  heldKey('nimbus/shop')
  minutes(14)
  t.ok(isOpen('nimbus/shop'), 'a use starts the time again')
  minutes(1)
  t.notOk(isOpen('nimbus/shop'))
  t.throws(() => heldKey('nimbus/shop'), /Enter the key string/)
})

t.test('no package but Preact, its signals, icons and differences of texts; nothing that makes markup of text', async (t) => {
  const forbidden = /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|sessionStorage|document\.cookie/
  for (const name of sources) {
    const source = readFileSync(join('console', name), 'utf8')
    for (const [, from] of source.matchAll(/^(?:import|export) [^;]*?from '([^']+)'/gm)) {
      t.ok(/^(?:\.\.?\/|preact$|preact\/hooks$|@preact\/signals$|lucide$|diff$)/.test(from!), `${name}: ${from}`)
    }
    t.notMatch(source, forbidden, name)
  }
  const built = readdirSync('dist/console').find((name) => name.endsWith('.js'))!
  t.notMatch(readFileSync(join('dist/console', built), 'utf8'), /localStorage|sessionStorage|document\.cookie/)
})

t.test('the files of the console import each other without a cycle', async (t) => {
  const imports = new Map(sources.map((name) => [name, [...readFileSync(join('console', name), 'utf8')
    .matchAll(/^import (?!type )[^;]*?from '(\.[^']+)'/gm)].map(([, from]) => join(dirname(name), from!))]))
  const visit = (name: string, path: readonly string[]) => {
    if (path.includes(name)) t.fail([...path, name].join(' → '))
    else for (const next of imports.get(name) ?? []) visit(next, [...path, name])
  }
  for (const name of sources) visit(name, [])
  t.ok(imports.get('main.tsx')!.includes('ui.tsx'))
})

t.test('the operations of the console are those of openapi.yaml', async (t) => {
  const { paths } = parse(readFileSync('openapi.yaml', 'utf8')) as { paths: Record<string, Record<string, { operationId: string, deprecated?: boolean }>> }
  const published = new Map(Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(operationsIn(methods)).map(([method, { operationId, deprecated }]) => [operationId, { text: `${method.toUpperCase()} ${path}`, deprecated }] as const)))
  for (const [operation, text] of operationsOfConsole()) {
    t.equal(text, published.get(operation)?.text, operation)
    t.not(published.get(operation)?.deprecated, true, operation)
  }
  for (const name of sources.filter((name) => name !== 'auth.ts' && name !== 'api.ts')) {
    t.notMatch(readFileSync(join('console', name), 'utf8'), /\bfetch\(|XMLHttpRequest/, `${name} calls no operation itself`)
  }
  t.strictSame([...(await load('scopes.ts')).ALL_SCOPES].sort(), [...SCOPE_NAMES].sort())
})

t.test('a value keeps every byte in its escaped form', async (t) => {
  const { escapeValue, needsEscapes, unescapeValue } = await load('values.ts')
  const values = [
    '', 'plain', 'a\tb', 'a\rb', 'a\r\nb', '\nfirst', 'last\n', '\u0000\u0001\u001b', '\ufeffmark', 'back\\slash \\n', '\\u{41}',
    'é 漢 🙂', 'zero\u200bwidth', '\u202eright', '\u2028\u2029', '\u0085', '\ud800', String.fromCharCode(...Array(256).keys())
  ]
  for (const value of values) {
    const escaped = escapeValue(value)
    t.equal(unescapeValue(escaped), value)
    t.notOk(/[\r\t\0\ufeff]/.test(escaped), 'no character that a text field changes')
  }
  for (const value of ['a\tb', 'a\rb', '\nfirst', '\ufeffmark', '\u0000', 'zero\u200bwidth', '\ud800']) t.ok(needsEscapes(value))
  for (const value of ['', 'plain', 'two\nlines', 'é 漢 🙂', '\\n']) t.notOk(needsEscapes(value))
  for (const wrong of ['\\x', '\\', '\\u{110000}', '\\u{}', '\\u0041']) t.throws(() => unescapeValue(wrong), /is no escape/, wrong)
})

t.test('names with invisible characters look different', async (t) => {
  const { shownName } = await load('values.ts')
  for (const [name, shown] of [
    ['NAME', 'NAME'], ['NAME\u200b', 'NAME\\u{200b}'], ['A\u202eB', 'A\\u{202e}B'], ['', '(empty name)'], ['é \\ b', 'é \\ b'],
    [' a ', '\\u{20}a\\u{20}'], ['a\nb', 'a\\u{a}b'], ['\t', '\\t']
  ] as const) t.equal(shownName(name), shown)
})

t.test('the browser reads .env texts as the service, also line separators and the place of an error', async (t) => {
  const { problemIn, readValues } = await load('values.ts')
  for (const text of [
    'A=1\n# c\u2028B=2\n', 'A=1\r\n# c\u2029$(x)\r\nB=2\r\n', 'A=1 # c\u2028B=2\n', 'A=\'x\u2028y\'\n',
    'A=1\n\u2028B=2\n', 'A=1\nA="x\\ny"\nB: 2\nexport C=', 'A=1\r# it\'s\rB=2', '__proto__=1\nconstructor=2'
  ]) t.strictSame(Object.fromEntries(readValues('env', text)), { ...readDocument('env', text) }, JSON.stringify(text))
  for (const [text, line] of [
    ['A=1\nB', 2], ['A=1\r\n\r\nB="x\r\n', 3], ['A=\'1\n2\'\nB', 3], ['A=1\n# c\u2028x\ny', 3], ['A=1\rB\r', 2], ['A=1 # c\u2028x\n', 1]
  ] as const) t.same([problemIn('env', text).line, documentError('env', text)?.line], [line, line], JSON.stringify(text))
})

t.test('the browser changes documents of client-managed projects without touching other lines', async (t) => {
  const { changeValue, readValues } = await loadValues()
  const document = '# head\nA=1 # one\nexport B="two\\nlines"\r\n\nC=\'x\'\n'.replace('\r', '')
  t.strictSame([...readValues('env', document)], [['A', '1'], ['B', 'two\nlines'], ['C', 'x']])
  t.equal(changeValue('env', document, 'C', 'y z'), document.replace("C='x'", "C='y z'"))
  t.equal(changeValue('env', document, 'D', '4'), `${document}D=4\n`)
  t.equal(changeValue('env', 'A=1\r\nB=2', 'D', '4'), 'A=1\r\nB=2\r\nD=4')
  t.equal(changeValue('env', document, 'C', undefined), document.replace("C='x'\n", ''))
  t.equal(changeValue('env', 'A=1\r\nB=2\r\n', 'A', '3'), 'A=3\r\nB=2\r\n')
  for (const value of ['', "it's", 'a"b', '$HOME `x`', 'x # y', '{"k": "it\'s"}', '"it\'s"', 'a\'b"c`d', ' spaces ', 'l1\nl2', 'cr\rlf', '\t', '漢']) {
    t.equal(readValues('env', changeValue('env', document, 'NEW', value)).get('NEW'), value)
  }
  t.equal(changeValue('env', 'A=1#old # note\r\nB=2\r\n', 'A', 'x\ny'), 'A="x\\ny" # note\r\nB=2\r\n', 'nothing of the old value is left')
  t.equal(changeValue('env', '\ufeffA=1\n# c\nB=`2` # d\nC=3\n', 'A', undefined), '\ufeff# c\nB=`2` # d\nC=3\n', 'the comment of another name stays')
  t.throws(() => changeValue('env', '', 'a b', '1'), /cannot hold/)
  t.throws(() => changeValue('env', 'not a line', 'A', '1'), /as a whole/)
  t.equal(changeValue('json', '{"A": 1, "B": {"x": true}}', 'A', 'é'), '{"A": "é", "B": {"x": true}}')
  t.equal(changeValue('json', '', 'A', '1'), '{\n  "A": "1"\n}\n')
  for (const name of ['constructor', '__proto__', 'toString']) {
    const changed = changeValue('json', '{"A": "1"}', name, 'x')
    t.strictSame([...readValues('json', changed)], [['A', '1'], [name, 'x']])
    t.strictSame([...readValues('json', changeValue('json', changed, name, undefined))], [['A', '1']])
  }
  for (const kept of ['12345678901234567890', '1.50', '1e400', '{"x": [0.10]}', '1, "A": 2', '{"x": 1, "x": 2}']) {
    t.equal(changeValue('json', `{"A": ${kept}, "B": "1"}`, 'B', '2'), `{"A": ${kept}, "B": "2"}`)
  }
  t.equal(changeValue('json', '\ufeff{"A": "\\u00e9\\"1.50", "B": [true, null, -1.5]}', 'A', '2'), '\ufeff{"A": "2", "B": [true, null, -1.5]}')
  t.strictSame([...readValues('json', '{"A": 1, "B": null, "C": {"x": 1}}')], [['A', '1'], ['B', ''], ['C', '{"x":1}']])
  t.equal(readValues('yaml', 'A: 1'), undefined)
  for (const format of ['yaml', 'text']) t.throws(() => changeValue(format, '', 'A', '1'), /no names that the browser can read/)
})

t.test('the browser keeps the line endings of other names', async (t) => {
  const { changeValue } = await loadValues()
  const document = "A=1\r\nPEM='a\nb'\nB=\"c\r\nd\" # e\r\nC=2\rD=3\n"
  t.equal(changeValue('env', document, 'A', 'x'), document.replace('1', 'x'))
  t.equal(changeValue('env', document, 'B', undefined), document.replace('B="c\r\nd" # e\r\n', ''))
  t.equal(changeValue('env', document, 'C', 'x y'), document.replace('C=2', "C='x y'"))
  t.equal(changeValue('env', document, 'NEW', 'x'), `${document}NEW=x\n`)
  t.equal(changeValue('env', `\ufeff${document}`, 'PEM', 'x'), `\ufeff${document.replace("'a\nb'", "'x'")}`)
  t.equal(changeValue('env', 'A=1\rB=2\r', 'B', '3'), 'A=1\rB=3\r')
})

t.test('the browser keeps the types of JSON values', async (t) => {
  const { changeOf, changeValue } = await loadValues()
  const document = '{"A": {"x": 12345678901234567890}, "B": [1], "C": 1, "D": "{}", "E": null}'
  for (const [name, value, json] of [
    ['A', '{"x": 1.50}\n', '{"x":1.50}'], ['B', '{}', '{}'], ['C', '2', '"2"'], ['D', '[]', '"[]"'], ['E', '{}', '"{}"']
  ] as const) {
    const old = JSON.parse(document)[name] as unknown
    const written = name === 'A' ? '{"x": 12345678901234567890}' : JSON.stringify(old)
    t.equal(changeValue('json', document, name, value), document.replace(`"${name}": ${written}`, `"${name}": ${json}`), name)
  }
  for (const [name, value] of [['A', '{"x":12345678901234567890}'], ['B', '[1]'], ['C', '1'], ['E', '']] as const) {
    t.equal(changeValue('json', document, name, value), document, 'the same text changes nothing')
  }
  for (const value of ['x', '', '1', '{', '"{}"']) t.throws(() => changeValue('json', document, 'A', value), /an object or a list/)
  t.equal(changeOf('json', '{"A":{"x":1}}', '{"A":{"x":1.50}}'), undefined, 'an object is stored with the whole document')
})

t.test('the browser sends the types and digits of JSON values', async (t) => {
  const { nestedValues, objectText, typedEntries } = await load('values.ts')
  const typedValues = (text: string) => objectText(typedEntries(text))
  const set = {
    A: ' {"x": [1.50, 12345678901234567890]}', 'B"': '1', C: 'null', D: '[]', E: '{"k": "v"}', ['__proto__']: 'x'
  }
  t.equal(nestedValues(set, ['A', 'D']),
    '{"A":{"x":[1.50,12345678901234567890]},"B\\"":"1","C":"null","D":[],"E":"{\\"k\\": \\"v\\"}","__proto__":"x"}',
    'a text that the service did not refuse stays a text with its blanks')
  t.strictSame(JSON.parse(nestedValues(set, [])), set)
  t.equal(typedValues('\ufeff{"A": {"x": 1.50, "x": 1e400}, "B": 1, "B": 12345678901234567890, "C": [true, null], "__proto__": "1"}\n'),
    '{"A":{"x":1e400},"B":12345678901234567890,"C":[true,null],"__proto__":"1"}')
  t.equal(typedValues('\ufeff{"A": "x", "B": {"c": 1, "c": 2}, "A": "y"}'), '{"A":"y","B":{"c":2}}')
  for (const text of ['', ' \n']) t.equal(typedValues(text), '{}')
})

t.test('the browser sends as an object or a list only what the service refuses as a text', async (t) => {
  const { changeNames } = await load('levels.ts')
  const bodies: string[] = []
  const refusals = [['set.A'], ['set.D'], []]
  const answer = async (url: URL | string, { method, body }: { method?: string, body?: string } = {}) => {
    const { pathname, searchParams } = new URL(url)
    if (pathname === '/oauth/authorize') {
      return { url: `http://localhost/console/?code=c&state=${searchParams.get('state')!}`, headers: new Headers() }
    }
    if (method === 'POST') return Response.json({ access_token: 'a', expires_in: '3600' })
    if (pathname === '/api/v1/user') return Response.json({ data: {} })
    bodies.push(body!)
    const errors = refusals.shift()!
    if (errors.length === 0) return Response.json({ data: { unchanged: false } }, { headers: { etag: '"2"' } })
    return Response.json({ errors: Object.fromEntries(errors.map((name) => [name, ['']])) }, { status: 422 })
  }
  t.intercept(globalThis, 'fetch', { value: answer })
  const set = { A: '{"x": 1.0}', B: '[1, 2]', C: 'x', D: '[]' }
  const change = async () => changeNames({ organization: 'o', project: 'p' }, { set }, '"1"', false, 'json')
  t.equal(await change(), '"2"')
  t.strictSame(bodies, [
    JSON.stringify({ set }),
    '{"set":{"A":{"x":1.0},"B":"[1, 2]","C":"x","D":"[]"},"unset":[]}',
    '{"set":{"A":{"x":1.0},"B":"[1, 2]","C":"x","D":[]},"unset":[]}'
  ])
  for (const refused of ['set.C', 'body']) {
    refusals.push([refused])
    const refusal = await change().catch((error: unknown) => error)
    t.equal(refusal.status, 422, 'a text that is no object or list, or another refusal')
  }
  t.equal(bodies.length, 5)
})

t.test('the browser reads JSON as the service does', async (t) => {
  const { readValues } = await load('values.ts')
  for (const text of [
    '{"A": 1234567890123456789}', '{"A": {"ids": [12345678901234567890, 1.10, -0, 1e400], "x": null}}', '{"A": 1, "A": 2.50}',
    '{"__proto__": "a", "constructor": {"__proto__": 1}}', '{"A": "\\u00e9\\n", "\\u0041": true}', '{}', '\ufeff{"A":\r\n[ 1 , 2 ]}',
    '[1]', '{"A": 01}', '{"A": 1', 'null'
  ]) {
    const expected = readDocument('json', text)
    t.strictSame(readValues('json', text), expected && new Map(Object.entries(expected)), text)
  }
})

t.test('the browser writes values into .env documents as the service does', async (t) => {
  const { changeValue } = await loadValues()
  const olds = [
    '', 'X=x # c\n', 'export X=x#old # c\n', 'X=x\t# c\n', 'X= # c #\n', "X='x'#old\n", 'X="x" # c\n', 'X="x\\ny"\n', 'X=`x`\n', 'X:\n  x\n',
    'X=\n\n"x"#old\n', 'X="x" y#old\n', 'X=1\nX=2\n'
  ]
  const wrong = olds.flatMap((old) => VALUES.flatMap((value) => ['\n', '\r\n'].flatMap((lineEnd) => {
    const text = `# c\n${old}${old === '' ? '' : 'B=1\n'}`.replaceAll('\n', lineEnd)
    const byService = changeNames('env', text, { set: texts([['X', value]]), unset: [], replace: null })
    const byBrowser = changeValue('env', text, 'X', value)
    return 'text' in byService && byService.text === byBrowser ? [] : [{ text, value, byService, byBrowser }]
  })))
  t.strictSame(wrong.slice(0, 10), [], `${wrong.length} differ`)
})

t.test('the browser keeps the line ends and types that a change does not name', async (t) => {
  const { changeValue } = await loadValues()
  for (const [before, name, value, after] of [
    ['A=1\nB=2\r\nC=3\n', 'A', 'x', 'A=x\nB=2\r\nC=3\n'],
    ['A=1\r\nB="l1\nl2"\nC=3\r\n', 'C', undefined, 'A=1\r\nB="l1\nl2"\n'],
    ['A=1\r\nB=2\n', 'D', '4', 'A=1\r\nB=2\nD=4\n'],
    ['A=1\rB=2\r', 'A', 'x', 'A=x\rB=2\r'],
    ['A=1\nB=2', 'B', 'x', 'A=1\nB=x'],
    ['A=1\nB=2', 'C', '3', 'A=1\nB=2\nC=3'],
    ['A:\n', 'C', '3', 'A:\n\nC=3\n']
  ] as const) t.equal(changeValue('env', before, name, value), after, JSON.stringify(before))
  const json = '{"n": 1.0, "t": true, "z": null, "e": "\\u0041", "o": {"a": [1]}, "l": [ 1, 2 ]}'
  for (const [name, value] of [['n', '1.0'], ['t', 'true'], ['z', ''], ['e', 'A'], ['o', '{"a":[1]}'], ['l', '[1,2]']] as const) {
    t.equal(changeValue('json', json, name, value), json, `${name} already reads as ${value}`)
  }
  t.equal(changeValue('json', json, 'n', '2'), json.replace('1.0', '"2"'))
  t.equal(changeValue('json', json, 'o', ' {"a": 12345678901234567890} '), json.replace('{"a": [1]}', '{"a":12345678901234567890}'))
  for (const text of ['text', '', '12', '"x"', '{"a": 1', 'null']) {
    for (const name of ['o', 'l']) t.throws(() => changeValue('json', json, name, text), /is an object or a list/, text)
  }
  t.equal(changeValue('json', json, 't', '{}'), json.replace('true', '"{}"'), 'a text stays a text elsewhere')
})

t.test('the first error of a text has the place that the service names', async (t) => {
  const { problemIn } = await load('values.ts')
  for (const [format, text] of [
    ['json', '{"A": x}'], ['json', '{\n"A": "1"\r\n"B": 2}'], ['json', '\ufeff{"🙂": }'], ['json', '{"A": "\n"}'], ['json', '[1]'], ['json', '{"A": 1'],
    ['json', '"text"'], ['json', 'null\n1'], ['json', '\n['], ['json', '\n"open'], ['json', '[1,\n 2'], ['json', '\n [1]\n'],
    ['json', `{"A": [${'1,'.repeat(20000)}1]}`], ['json', `{"A":\n${'['.repeat(200000)}`], ['json', ''], ['json', '\n \n'], ['json', '\ufeff'], ['env', 'A=1\nnothing'], ['env', '\r\n\r\n= 1'], ['env', 'A="open']
  ] as const) {
    const { line, column } = documentError(format, text)!
    t.match({ line, column }, problemIn(format, text), `${format} ${JSON.stringify(text)}`)
  }
  for (const [format, text] of [['json', '{"A": 1}'], ['env', 'A=1'], ['env', ''], ['yaml', ': ['], ['text', 'x']]) t.equal(problemIn(format, text), undefined)
})

t.test('an import in the browser keeps the other names of a JSON document, and the types of all values', async (t) => {
  const { setTyped } = await load('values.ts')
  const document = '\ufeff{\n  "A": 1.0, "B": {"x": 12345678901234567890},\n  "C": "text"\n}\n'
  for (const [other, after] of [
    ['{}', document], ['{"A": 1.0, "B": {"x":12345678901234567890}}', document],
    ['{"A": 2.50}', document.replace('1.0', '2.50')],
    ['{"C": [1, null], "D": true}', document.replace('"text"\n', '[1,null],\n  "D": true\n')]
  ] as const) t.equal(setTyped(document, other).text, after, other)
  t.strictSame(setTyped(document, '{"A": "1.0", "B": {"x":12345678901234567890}, "D": null}').names, {
    added: ['D'], changed: ['A'], removed: []
  }, 'a value of another type is a change, also if it reads the same')
  t.strictSame(JSON.parse(setTyped('', '{"__proto__": 1, "A": "x"}').text), JSON.parse('{"__proto__": 1, "A": "x"}'))
})

t.test('the browser writes a value again where other readers find another one, and says so', async (t) => {
  const { changedBy } = await load('values.ts')
  const document = "A=same#old\nB='same' # note\nC='same'old\nD=same\nE:\n  same\n"
  const set = { A: 'same', B: 'same', C: "'same'old", D: 'same', E: 'same' }
  t.strictSame(changedBy('env', document, { set, unset: ['F'] }), {
    text: 'A=same\nB=\'same\' # note\nC=\'same\'old\nD=same\nE: same\n',
    names: { added: [], changed: ['A', 'E'], removed: [] }
  })
  t.strictSame(changedBy('env', document, { set: { F: '1' }, unset: ['B', 'C'] }).names, {
    added: ['F'], changed: [], removed: ['B', 'C']
  })
})

t.test('the browser knows where other programs differ in the names that a change writes', async (t) => {
  const { changeValues, differencesIn } = await load('values.ts')
  const set = { A: 'it\'s "x"', B: "it's $x", C: 'a$b', D: '\'"#' }
  const text = changeValues('env', 'A=1\r\nOLD=a$b\r\n', { set })
  t.match(differencesIn('env', text, new Set(Object.keys(set))).notes, {
    warnings: [
      { line: null, name: 'A', reason: 'unquoted' }, { line: null, name: 'B', reason: 'expansion' },
      { line: null, name: 'D', reason: 'backticks' }
    ],
    warnings_more: 0
  }, 'not in C, which is in single quotes, and not in OLD, which stays')
  t.match(differencesIn('env', text).notes.warnings.map(({ name }: { name: string }) => name), ['OLD', 'B', 'D'])
})

t.test('many names of an .env document are changed together as one by one', async (t) => {
  const { changeValues, changeValue, readValues } = await loadValues()
  const document = '# mine\r\nA=1\r\nB="two" # b\r\nC:\n'
  const values = [...VALUES, ...Array.from({ length: 30 }, (_, i) => String(i))]
  const set = Object.fromEntries(values.map((value, i) => [`N${i}`, value] as const))
  for (const text of ['', document, 'A=1\nB=2', '\ufeffA=1']) {
    for (const unset of [[], ['A']]) {
      const can = Object.keys(set).filter((name) => { try { return changeValue('env', text, name, set[name]) !== '' } catch { return false } })
      const changes = { set: { ...Object.fromEntries(can.map((name) => [name, set[name]])), B: '3' } as Record<string, unknown>, unset }
      const changed = changeValues('env', text, changes)
      const expected = { ...Object.fromEntries(readValues('env', text)), ...changes.set }
      for (const name of unset) delete expected[name]
      t.strictSame(Object.fromEntries(readValues('env', changed)), expected)
    }
  }
  const start = Date.now()
  const many = Object.fromEntries(Array.from({ length: 5000 }, (_, i) => [`NAME_${i}`, `value ${i}`]))
  t.equal(readValues('env', changeValues('env', 'A=1\r\nB=2', { set: many })).size, 5002)
  t.comment(`5,000 names after ${Date.now() - start} ms`)
  const some = Object.fromEntries(Object.entries(many).slice(0, 30))
  t.throws(() => changeValues('env', '', { set: { ...some, 'a b': '1' } }), /cannot hold/)
})

t.test('an import is sent in parts within the limits of the service, in its order', async (t) => {
  const { inParts } = await load('values.ts')
  const sizes = (entries: unknown[]) => inParts(entries).map((part: unknown[]) => part.length)
  const many = (count: number, json?: string) => Array.from({ length: count }, (_, i) => [`N${i}`, ...json === undefined ? [] : [json]])
  t.strictSame(sizes([]), [0], 'nothing to set is one request')
  t.strictSame(sizes(many(1000, '"x"')), [1000])
  t.strictSame(sizes(many(2001, '"x"')), [1000, 1000, 1])
  t.strictSame(sizes([...many(600, '"x"'), ...many(600)]), [1000, 200], 'names to remove count, too')
  for (const entries of [
    many(5, JSON.stringify('x'.repeat(100_000))), many(3, JSON.stringify('x'.repeat(300_000))),
    many(50, JSON.stringify(Array.from({ length: 1000 }, () => 1))), many(900, '{"a": [1, 2, {"b": null}]}')
  ]) {
    const parts = inParts(entries) as [string, string?][][]
    t.strictSame(parts.flat(), entries)
    for (const part of parts) {
      const set = Object.fromEntries(part.map(([name, json]) => [name, JSON.parse(json!)]))
      const characters = part.reduce((sum, [name, json = '']) => sum + name.length + json.length, 0)
      t.ok(part.length === 1 || characters <= CHANGE_LIMITS.characters, `${characters} characters`)
      const members = membersIn({ set, unset: [], replace: Object.keys(set) })
      t.ok(part.length === 1 || members <= CHANGE_LIMITS.members, `${members} members`)
      t.ok(part.length <= CHANGE_LIMITS.names)
    }
  }
})

const membersIn = (value: unknown): number => typeof value !== 'object' || value === null
  ? 0
  : Object.values(value).reduce((sum: number, member) => sum + 1 + membersIn(member), 0)

t.test('times are ISO dates in the zone of the browser, which the title names', async (t) => {
  const { localTime } = await load('ui.tsx')
  const before = process.env.TZ
  t.teardown(() => { if (before === undefined) delete process.env.TZ; else process.env.TZ = before })
  for (const [zone, text, title] of [
    ['UTC', '2026-11-30 23:40', '2026-11-30 23:40:05 UTC+00:00, UTC'],
    ['Europe/Berlin', '2026-12-01 00:40', '2026-12-01 00:40:05 UTC+01:00, Europe/Berlin'],
    ['America/St_Johns', '2026-11-30 20:10', '2026-11-30 20:10:05 UTC-03:30, America/St_Johns']
  ] as const) {
    process.env.TZ = zone
    t.strictSame(localTime(new Date('2026-11-30T23:40:05Z')), { text, title })
  }
})

t.test('the account pages have the colors, type and space of the console', async (t) => {
  const variables = (css: string) => [...css.matchAll(/(--[\w-]+):\s*([^;]+);/g)].map(([, name, value]) => `${name}: ${value}`)
  const ofConsole = variables(readFileSync('console/style.css', 'utf8'))
  const ofPages = variables(STYLE)
  t.ok(ofPages.length > 30)
  t.strictSame(ofPages.filter((one) => !ofConsole.includes(one)), [])
  const used = new Set([...STYLE.matchAll(/var\((--[\w-]+)\)/g)].map(([, name]) => name!))
  t.strictSame([...used].filter((name) => !ofPages.some((one) => one.startsWith(`${name}:`))), [])
})

t.test('the account pages and the console have one logo', async (t) => {
  const shapes = [...LOGO.matchAll(/<(rect|circle|path) ([^>]*)\/>/g)].map(([, name, attributes]) =>
    [name, Object.fromEntries([...attributes!.matchAll(/([\w-]+)="([^"]*)"/g)].map(([, key, value]) => [key, value]))])
  t.strictSame(shapes, Vault.map(([name, attributes]) => [name, { ...attributes }]))
  t.match(readFileSync('console/layout.tsx', 'utf8'), '<Icon of={Vault} />Strongroom')
})

t.test('an address with a malformed escape is a place', async (t) => {
  const { placeOf } = await load('router.ts')
  t.match(placeOf('/console/nimbus/%E0%A4%A/-/level'), { page: 'level', organization: 'nimbus', project: '%E0%A4%A' })
  t.match(placeOf('/console/%25/a%20b'), { page: 'matrix', organization: '%', project: 'a b' })
})

t.test('each page has an address, and an address that names no page is unknown', async (t) => {
  const { PAGES, pathOf, placeOf } = await load('router.ts')
  const nimbus = { organization: 'nimbus', project: '', target: undefined, environment: undefined }
  const levels = [{ project: 'shop' }, { project: 'shop', target: 'api' }, { project: 'shop', target: 'api', environment: 'live' }]
  for (const page of Object.keys(PAGES)) {
    const isOfLevel = ['level', 'history'].includes(page)
    const places = ['matrix', 'keys', 'settings'].includes(page) ? [levels[0]] : isOfLevel ? levels : [{}]
    for (const place of places) {
      t.match(placeOf(pathOf({ ...nimbus, ...place, page })), { ...nimbus, ...place, page }, page)
    }
  }
  for (const page of ['keys', 'settings']) {
    t.equal(placeOf(pathOf({ ...nimbus, ...levels[2], page })).page, page, 'from the page of a level')
  }
  for (const path of ['nimbus/-', 'nimbus/-/none', 'nimbus/-/people/more', 'nimbus/shop/none', 'nimbus/shop/-', 'nimbus/shop/-/none', 'nimbus/shop/-/keys/api', 'nimbus/shop/-/level/a/b/c']) {
    t.equal(placeOf(`/console/${path}`).page, 'unknown', path)
  }
})

t.test('a person may do what the role or a team gives at a place', async (t) => {
  const { can, canSomewhere, rights, shownProject } = await load('rights.ts')
  const project = (slug: string, ...parts: [scopes: string[], restrictions: object[]][]) =>
    ({ slug, rights: parts.map(([scopes, restrictions]) => ({ scopes, restrictions })) })
  const [shop, backend, live, test] = [{ project: 'shop' }, { project: 'shop', target: 'backend' }, { project: 'shop', target: 'backend', environment: 'live' }, { project: 'shop', target: 'backend', environment: 'test' }]
  const allowed = (scopes: string[]) => [shop, backend, live, test, { project: 'other' }].map((place) => can(scopes, place))
  t.strictSame(allowed(['secret:read']), [true, true, true, true, true], 'unknown rights: the service decides')
  rights.value = { organization: 'nimbus', scopes: null, projects: [] }
  t.strictSame(allowed(['secret:read', 'key:rotate']), [true, true, true, true, true])
  rights.value = { organization: 'nimbus', scopes: ['organization:read'], projects: [] }
  t.strictSame([can(['organization:read'], shop), ...allowed(['secret:read'])], [true, false, false, false, false, false])
  for (const [restrictions, expected] of [
    [[], [true, true, true, true, false]],
    [[{ target: 'backend' }], [false, true, true, true, false]],
    [[{ target: 'backend', environment: 'live' }], [false, false, true, false, false]],
    [[{ except_status: 'production' }], [false, false, false, true, false]],
    [[{ target: 'website' }], [false, false, false, false, false]],
    [[{ target: 'website' }, { target: 'backend', environment: 'test', inherited: true }], [false, false, false, true, false]]
  ] as const) {
    shownProject.value = { levels: [{ target: 'backend', environment: 'live', status: 'production' }, { target: 'backend', environment: 'test', status: 'staging' }, { target: 'backend', environment: null, status: null }] }
    rights.value = { organization: 'nimbus', scopes: ['secret:history'], projects: [project('shop', [['secret:read'], [...restrictions]])] }
    t.strictSame(allowed(['secret:read']), expected, JSON.stringify(restrictions))
    t.strictSame(allowed(['secret:read', 'secret:history']), expected)
    t.strictSame(allowed(['secret:read', 'secret:write']), [false, false, false, false, false])
    t.ok(canSomewhere(['secret:read'], 'shop') && canSomewhere(['secret:read']) && !canSomewhere(['secret:read'], 'other'))
  }
})

t.test('levels are in the order of their making: the project, then each target with its environments', async (t) => {
  const { inOrder } = await load('rights.ts')
  const level = (level: string, id: string, target: string | null = null, environment: string | null = null) =>
    ({ level, id, target, environment })
  const levels = [
    level('project', '09'), level('target', '03', 'a'), level('environment', '07', 'a', 'x'), level('environment', '05', 'a', 'z'),
    level('target', '02', 'b'), level('environment', '04', 'b', 'x'), level('environment', '06', 'b', 'w')
  ]
  t.strictSame(inOrder(levels).map(({ id }: { id: string }) => id), ['09', '02', '04', '06', '03', '05', '07'])
  t.strictSame(inOrder(levels.filter(({ level }) => level === 'environment')).map(({ id }: { id: string }) => id), ['05', '07', '04', '06'])
})

t.test('a difference has each line of both texts once, and the common lines in their order', async (t) => {
  const { diffLines } = await load('difference.tsx')
  for (const [before, after, expected] of [
    ['a', 'b', '-a +b'], ['a\nb', 'a\nb', ' a  b'], ['a\nb\nc', 'a\nc', ' a -b  c'], ['a\nc', 'a\nb\nc', ' a +b  c'], ['', 'x', '- +x'],
    ['a\nb', 'b\na', '-a  b +a']
  ] as const) t.equal(diffLines(before, after).map((line: string[]) => line.join('')).join(' '), expected, JSON.stringify([before, after]))
  const long = Array.from({ length: 3000 }, (_, i) => String(i)).join('\n')
  t.equal(diffLines(long, `${long}x`).length, 3001)
  t.equal(diffLines(long, long.replace(/^/gm, 'x')).length, 6000, 'texts that differ in more than 1,000 lines are not compared')
})

t.test('an edited document is a change of names if nothing else differs', async (t) => {
  const { changeOf } = await load('values.ts')
  t.strictSame(changeOf('env', '# c\nA=1\nB=2\nC=3\n', '# c\nA=1\nB=x\nD=4\n'), { set: { B: 'x', D: '4' }, unset: ['C'] })
  t.equal(changeOf('env', '# c\nA=1\n', '# d\nA=2\n'), undefined, 'a comment')
  t.equal(changeOf('env', 'A=1\n', 'not a line'), undefined)
  t.equal(changeOf('yaml', 'A: 1\n', 'A: 2\n'), undefined)
  t.strictSame(changeOf('json', '{\n  "A": "1"\n}\n', '{\n  "A": "2"\n}\n'), { set: { A: '2' }, unset: [] })
  t.equal(changeOf('json', '{\n  "A": 1\n}\n', '{\n  "A": 2\n}\n'), undefined, 'a number')
  t.equal(changeOf('json', '{"A":{"b":1}}', '{"A":{"b":2}}'), undefined, 'an object')
  const many = Array.from({ length: 21 }, (_, i) => `N${i}=1\n`).join('')
  t.equal(changeOf('env', '', many), undefined)
})

t.test('the browser derives keys and opens blobs as the vectors say', async (t) => {
  const { deriveKey, openBlob, sealBlob } = await load('../src/client/keys.ts')
  const { keys, blobs } = JSON.parse(readFileSync('test/vectors/client.json', 'utf8'))
  const strong = keys.find((one: { iterations: number }) => one.iterations >= 600_000)
  const { key_string, salt, iterations, data_key, proof } = strong
  const key = await deriveKey(key_string, { salt, iterations })
  t.equal(key.proof, proof)
  const other = await crypto.subtle.importKey('raw', Buffer.from(data_key, 'base64'), 'AES-GCM', false, ['encrypt', 'decrypt'])
  t.equal(await openBlob({ key: other }, await sealBlob(key, '\ufeffsame\r\n\0')), '\ufeffsame\r\n\0')
  for (const { data_key, plaintext, blob } of blobs) {
    const key = await crypto.subtle.importKey('raw', Buffer.from(data_key, 'base64'), 'AES-GCM', false, ['decrypt'])
    t.equal(await openBlob({ key }, blob), plaintext)
    const wrong = Buffer.from(blob, 'base64')
    wrong[20]! ^= 1
    await t.rejects(openBlob({ key }, wrong.toString('base64')), /does not decrypt/)
  }
  await t.rejects(deriveKey(key_string, { salt, iterations: 1000 }), /only 1000 iterations/)
  await t.rejects(deriveKey('x'.repeat(32), { salt, iterations }), /Use another length/)
})
