// A browser without a window, and pages that open from disk in it.
import { pathToFileURL } from 'node:url';

import puppeteer from 'puppeteer-core';

/** Starts the browser. */
export function launched() {
    return puppeteer.launch({
        executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
        // The sandbox needs what a container does not give to its root.
        args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
    });
}

/** Opens a file, and lists what goes wrong there: errors, and whatever is asked of a server. */
export async function opened(browser, path) {
    const page = await browser.newPage();
    const wrong = [];
    page.on('pageerror', (error) => wrong.push(error.message));
    page.on('request', (request) => {
        if (!/^(file|data):/.test(request.url())) wrong.push(request.url());
    });
    await page.goto(pathToFileURL(path).href);
    return { page, wrong };
}
