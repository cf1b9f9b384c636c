#include "llama/report/html.h"

#include "kernels/runtime/check.h"
#include "llama/base/json.h"

namespace rz {

std::string escape_html(const std::string& text) { return escape_markup(replace_invalid_utf8(text)); }

static bool is_number(const std::string& text) {
    return text.find_first_of("0123456789") != std::string::npos &&
           text.find_first_not_of("0123456789.,+-e%") == std::string::npos;
}

HtmlPage::HtmlPage(std::string title, std::string note) : title_(std::move(title)), note_(std::move(note)) {}

void HtmlPage::heading(const std::string& text) { body_ += "<h2>" + escape_html(text) + "</h2>\n"; }

void HtmlPage::paragraph(const std::string& text) { body_ += "<p>" + escape_html(text) + "</p>\n"; }

void HtmlPage::table(const std::vector<std::vector<std::string>>& rows) {
    body_ += "<div class=\"wide\"><table>\n";
    for (size_t r = 0; r < rows.size(); ++r) {
        body_ += "<tr>";
        for (const std::string& cell : rows[r]) {
            const char* tag = r == 0 ? "th" : "td";
            body_ += std::string("<") + tag + (r > 0 && is_number(cell) ? " class=\"n\">" : ">") + escape_html(cell) +
                     "</" + tag + ">";
        }
        body_ += "</tr>\n";
    }
    body_ += "</table></div>\n";
}

void HtmlPage::block(const std::string& title, const std::string& text) {
    body_ += "<h3>" + escape_html(title) + "</h3>\n<pre>" + escape_html(text) + "</pre>\n";
}

void HtmlPage::plots(const std::vector<std::string>& svgs) {
    body_ += "<div class=\"plots\">\n";
    for (const std::string& svg : svgs) body_ += "<figure>" + svg + "</figure>\n";
    body_ += "</div>\n";
}

// "</script>" inside a text would end the element, so no '<' stays: JSON has it in texts only.
void HtmlPage::data(const std::string& id, std::string_view json) {
    std::string safe;
    for (const char c : json) safe += c == '<' ? "\\u003c" : std::string(1, c);
    body_ += "<script type=\"application/json\" id=\"" + escape_html(id) + "\">" + safe + "</script>\n";
}

std::string HtmlPage::html() const {
    const std::string title = escape_html(title_);
    return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
           title +
           "</title>\n<style>\n"
           ":root{color-scheme:light dark}\n"
           "body{font:15px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;max-width:1280px;"
           "margin:2rem auto;padding:0 1rem}\n"
           "h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .6rem}\n"
           "h3{font-size:1rem;margin:1rem 0 .3rem}\n"
           ".note{color:#75797f;margin:.2rem 0 1rem}\n"
           ".wide{overflow-x:auto}table{border-collapse:collapse}\n"
           "th,td{padding:.25rem .7rem;border-bottom:1px solid #85898f55;text-align:left;white-space:nowrap}\n"
           "td.n{text-align:right;font-variant-numeric:tabular-nums}\n"
           "pre{background:#85898f22;padding:.7rem;overflow-x:auto;white-space:pre-wrap;margin:0}\n"
           ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(560px,100%),1fr));gap:1rem}\n"
           "figure{margin:0}figure svg{width:100%;height:auto}\n"
           "</style>\n</head>\n<body>\n<h1>" +
           title + "</h1>\n<p class=\"note\">" + escape_html(note_) + "</p>\n" + body_ + "</body>\n</html>\n";
}

}  // namespace rz
