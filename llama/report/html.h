#pragma once
// One HTML file that needs nothing else: text, tables, and plots as inline SVG; no script, no font, no network.

#include <string>
#include <string_view>
#include <vector>

#include "llama/report/plot.h"

namespace rz {

class HtmlPage {
   public:
    // `note` stands small under the title.
    HtmlPage(std::string title, std::string note);

    void heading(const std::string& text);
    void paragraph(const std::string& text);
    // The first row is the head. A cell is text; numbers are set to the right.
    void table(const std::vector<std::vector<std::string>>& rows);
    // Text with its line breaks, such as a sample.
    void block(const std::string& title, const std::string& text);
    // Plots stand side by side where there is room.
    void plots(const std::vector<std::string>& svgs);
    // Machine-readable: <script type="application/json" id="...">. `json` is valid JSON.
    void data(const std::string& id, std::string_view json);

    std::string html() const;

   private:
    std::string title_, note_, body_;
};

// Text for HTML, in an element or an attribute. Bytes that are not UTF-8 become U+FFFD, control characters \x1b.
std::string escape_html(const std::string& text);

}  // namespace rz
