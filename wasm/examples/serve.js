// Serves the page, the package and the sample to a browser on this machine.
//
//     node serve.js PACKAGE SAMPLE
//
// with PACKAGE the folder of maxsim-wasm and SAMPLE that of the tool's sample.
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const types = {
    '.html': 'text/html; charset=utf-8',
    '.js': 'text/javascript',
    '.jsonl': 'application/x-ndjson; charset=utf-8',
    '.wasm': 'application/wasm',
};

/** Serves folders by the first part of a path, and the page for the rest; resolves to its URL. */
export function serve(folders, port = 0) {
    const server = createServer(async (request, response) => {
        const { pathname } = new URL(request.url, 'http://localhost');
        const [first, ...rest] = pathname.slice(1).split('/');
        const isName = rest.length === 1 && /^[\w-][\w.-]*$/.test(rest[0]);
        const page = fileURLToPath(new URL('page.html', import.meta.url));
        const path = isName && Object.hasOwn(folders, first) ? join(folders[first], rest[0]) : page;
        try {
            const bytes = await readFile(path);
            const type = types[extname(path)] ?? 'application/octet-stream';
            response.writeHead(200, { 'Content-Type': type }).end(bytes);
        } catch {
            response.writeHead(404).end();
        }
    });
    return new Promise((resolve, reject) => {
        server.once('error', reject);
        server.listen(port, 'localhost', () => {
            resolve({ server, url: `http://localhost:${server.address().port}/` });
        });
    });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
    const [folder, sample] = process.argv.slice(2);
    if (sample === undefined) {
        console.error('usage: node serve.js PACKAGE SAMPLE');
        process.exit(2);
    }
    const { url } = await serve({ 'maxsim-wasm': folder, sample }, 8080);
    console.log(url);
}
